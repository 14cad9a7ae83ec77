// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include <tinyview.h>

namespace tinyfmt {

namespace detail {

inline void put(std::ostream& out, const tinyview::Extent& extent) {
  out << '[' << extent.rows << ", " << extent.columns << ']';
}

template <typename T>
void put(std::ostream& out, const T& value) {
  out << value;
}

inline void fill(std::ostream& out, std::string_view pattern) { out << pattern; }

template <typename First, typename... Rest>
void fill(std::ostream& out, std::string_view pattern, const First& first, const Rest&... rest) {
  const auto hole = pattern.find("{}");
  out << pattern.substr(0, hole);
  if (hole == std::string_view::npos) return;
  put(out, first);
  fill(out, pattern.substr(hole + 2), rest...);
}

}  // namespace detail

// Replace each `{}` by the next argument; arguments without a hole are dropped.
template <typename... Args>
std::string format(std::string_view pattern, const Args&... args) {
  std::ostringstream out;
  detail::fill(out, pattern, args...);
  return out.str();
}

}  // namespace tinyfmt
