// SPDX-License-Identifier: Apache-2.0
// What the kernels compute, element by element, and how they are started. Knows nothing of torch.
#pragma once

#include <cstddef>
#include <stdexcept>

#include <cuda_runtime_api.h>
#include <tinyfmt.h>
#include <tinyview.h>

#include "numeric.h"

namespace sample {

enum class Dtype { kFloat32, kBfloat16 };

// NVFP4: `packed` [rows, columns / 2], low nibble first; `scales` [rows, columns / 16], row-major E4M3.
struct Quant {
  const void* input;
  Dtype dtype;
  const float* global_scale;
  std::uint8_t* packed;
  std::uint8_t* scales;
  tinyview::Extent extent;

  template <typename T>
  SAMPLE_HD void block(std::int64_t index) const {
    const T* x = static_cast<const T*>(input) + index * kBlock;
    float largest = 0;
    for (int i = 0; i < kBlock; ++i) {
      const float a = std::fabs(to_float(x[i]));
      if (!(a <= largest)) largest = a;
      if (a != a) break;  // a NaN must not be forgotten by the next comparison
    }
    // Multiplied, not divided: fast math divides approximately, and both variants should agree.
    const std::uint8_t scale = to_e4m3(largest * (*global_scale * (1.0f / 6.0f)));
    scales[index] = scale;
    const float decoded = from_e4m3(scale);
    const float factor = decoded == 0 ? 0 : *global_scale / decoded;
    for (int i = 0; i < kBlock; i += 2) {
      const std::uint8_t low = to_e2m1(to_float(x[i]) * factor);
      const std::uint8_t high = to_e2m1(to_float(x[i + 1]) * factor);
      packed[(index * kBlock + i) / 2] = static_cast<std::uint8_t>(low | high << 4);
    }
  }
};

// out [m, n] = alpha * a [m, k] @ b [n, k] transposed
struct Matmul {
  const std::uint8_t* a;
  const std::uint8_t* b;
  const std::uint8_t* a_scales;
  const std::uint8_t* b_scales;
  const float* alpha;
  float* out;
  std::int64_t m, n, k;

  SAMPLE_HD void element(std::int64_t index) const {
    const std::int64_t row = index / n, column = index % n, blocks = k / kBlock;
    float sum = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::uint8_t* x = a + (row * blocks + block) * (kBlock / 2);
      const std::uint8_t* y = b + (column * blocks + block) * (kBlock / 2);
      int products = 0;
      for (int i = 0; i < kBlock / 2; ++i) {
        products += twice_e2m1(x[i] & 15) * twice_e2m1(y[i] & 15) + twice_e2m1(x[i] >> 4) * twice_e2m1(y[i] >> 4);
      }
      sum += from_e4m3(a_scales[row * blocks + block]) * from_e4m3(b_scales[column * blocks + block]) * 0.25f * static_cast<float>(products);
    }
    out[index] = *alpha * sum;
  }
};

struct RmsNorm {
  const void* input;
  const void* weight;
  void* out;
  Dtype dtype;
  float eps;
  tinyview::Extent extent;

  // One lane of `lanes` sums its share of a row; the caller adds the shares up.
  template <typename T>
  SAMPLE_HD float partial(std::int64_t row, int lane, int lanes) const {
    const T* x = static_cast<const T*>(input) + row * extent.columns;
    float sum = 0;
    for (std::int64_t i = lane; i < extent.columns; i += lanes) sum += to_float(x[i]) * to_float(x[i]);
    return sum;
  }

  template <typename T>
  SAMPLE_HD void scale(std::int64_t row, float sum, int lane, int lanes) const {
    const std::int64_t start = row * extent.columns;
    const float factor = 1.0f / std::sqrt(sum / static_cast<float>(extent.columns) + eps);
    for (std::int64_t i = lane; i < extent.columns; i += lanes) {
      store(static_cast<T*>(out) + start + i,
            to_float(static_cast<const T*>(input)[start + i]) * factor * to_float(static_cast<const T*>(weight)[i]));
    }
  }
};

void run_cpu(const Quant& quant);
void run_cpu(const Matmul& matmul);
void run_cpu(const RmsNorm& norm);

void run_cuda(const Quant& quant, cudaStream_t stream);
void run_cuda(const Matmul& matmul, cudaStream_t stream);
void run_cuda(const RmsNorm& norm, cudaStream_t stream);

struct Allocation {
  std::uintptr_t base;
  std::size_t size;
};

Allocation allocation_of(const void* device_pointer);

inline void check_launch(const char* kernel) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error(tinyfmt::format("{}: {}", kernel, cudaGetErrorString(error)));
  }
}

inline unsigned grid_for(std::int64_t work, int per_block) {
  const std::int64_t blocks = (work + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 65535 ? blocks : 65535);  // kernels stride over the rest
}

}  // namespace sample
