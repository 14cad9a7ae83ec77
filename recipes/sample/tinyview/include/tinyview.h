// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tinyview {

struct Extent {
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  constexpr std::int64_t size() const { return rows * columns; }
};

}  // namespace tinyview
