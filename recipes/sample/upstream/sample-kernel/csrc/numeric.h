// SPDX-License-Identifier: Apache-2.0
// Number formats, written once for host and device so that the CPU reference tests the GPU's arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define SAMPLE_HD __host__ __device__ inline
#else
#define SAMPLE_HD inline
#endif

namespace sample {

constexpr int kBlock = 16;  // elements that share one scale

SAMPLE_HD std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

SAMPLE_HD float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Bfloat16 {
  std::uint16_t bits;
};

SAMPLE_HD float to_float(float value) { return value; }
SAMPLE_HD float to_float(Bfloat16 value) { return float_of(std::uint32_t{value.bits} << 16); }

SAMPLE_HD void store(float* to, float value) { *to = value; }
SAMPLE_HD void store(Bfloat16* to, float value) {
  const std::uint32_t bits = bits_of(value);
  // Adding the rounding term to a NaN could carry into the sign and end as zero.
  to->bits = value != value ? 0x7fc0 : static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; ties go to the even code.
SAMPLE_HD std::uint8_t to_e2m1(float value) {
  const float a = std::fabs(value);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<std::uint8_t>(code | (value < 0 ? 8 : 0));
}

// Twice the value: an integer, so that products within a block are exact.
SAMPLE_HD int twice_e2m1(std::uint8_t code) {
  const int mantissa = code & 1;
  const int exponent = code >> 1 & 3;
  const int magnitude = exponent == 0 ? mantissa : (2 + mantissa) << (exponent - 1);
  return code & 8 ? -magnitude : magnitude;
}

// E4M3 of a value that is not negative; saturates at 448, NaN stays NaN.
SAMPLE_HD std::uint8_t to_e4m3(float value) {
  if (value != value) return 0x7f;
  if (value >= 448.0f) return 0x7e;
  if (value < 0x1p-6f) return static_cast<std::uint8_t>(std::rint(value * 512.0f));
  std::uint32_t bits = bits_of(value);
  bits += 0x7ffff + (bits >> 20 & 1);
  return static_cast<std::uint8_t>((bits >> 20) - (120u << 3));
}

SAMPLE_HD float from_e4m3(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7f;
  if (magnitude == 0x7f) return float_of(0x7fc00000);
  if (magnitude < 8) return static_cast<float>(magnitude) * 0x1p-9f;
  return float_of((magnitude + (120u << 3)) << 20);
}

}  // namespace sample
