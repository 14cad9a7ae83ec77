// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace tinyjson {

inline std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out += '"';
}

// One flat object of strings; control characters are the caller's business.
inline std::string object(
    std::initializer_list<std::pair<std::string_view, std::string_view>> members) {
  std::string out = "{";
  for (const auto& [key, value] : members) {
    if (out.size() > 1) out += ", ";
    out += quote(key) + ": " + quote(value);
  }
  return out += '}';
}

}  // namespace tinyjson
