// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <tinyview.h>

namespace tinyfmt {

namespace detail {

inline std::string text(std::string_view value) { return std::string(value); }
inline std::string text(long long value) { return std::to_string(value); }
inline std::string text(int value) { return std::to_string(value); }

inline std::string text(const tinyview::Extent& extent) {
  return "[" + std::to_string(extent.rows) + ", " + std::to_string(extent.columns) + "]";
}

inline void render(std::string& out, std::string_view pattern) { out += pattern; }

template <typename First, typename... Rest>
void render(std::string& out, std::string_view pattern, const First& first, const Rest&... rest) {
  const auto hole = pattern.find("{}");
  out += pattern.substr(0, hole);
  if (hole == std::string_view::npos) return;
  out += text(first);
  render(out, pattern.substr(hole + 2), rest...);
}

}  // namespace detail

// Replace each `{}` by the next argument; arguments without a hole are dropped.
// Strings only, no streams: those crash where a library carries a second, static libstdc++.
template <typename... Args>
std::string format(std::string_view pattern, const Args&... args) {
  std::string out;
  detail::render(out, pattern, args...);
  return out;
}

}  // namespace tinyfmt
