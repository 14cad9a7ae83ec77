# SPDX-License-Identifier: Apache-2.0
"""A serving project in name only."""
