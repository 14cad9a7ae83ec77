# SPDX-License-Identifier: Apache-2.0
# Header-only archives: populated, never added as a subdirectory.
FetchContent_Declare(
  tinyjson
  URL https://sample.invalid/archives/tinyjson-1.1.0.tar
  URL_HASH SHA256=3c87d8d4528d4744ad25073d01cb88e248249a242de4b156a72957a8d9cc0488
  DOWNLOAD_EXTRACT_TIMESTAMP OFF
)
