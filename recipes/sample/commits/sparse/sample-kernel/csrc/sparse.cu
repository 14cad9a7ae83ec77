// SPDX-License-Identifier: Apache-2.0
#include "sparse.h"

#include "kernels.h"

namespace sample {

namespace {

constexpr int kThreads = 256;

__global__ void keep_above(const float* input, float* out, std::int64_t size, float threshold) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += stride) {
    out[i] = fabsf(input[i]) > threshold ? input[i] : 0.0f;
  }
}

}  // namespace

void keep_above_cuda(const float* input, float* out, std::int64_t size, float threshold, cudaStream_t stream) {
  if (size == 0) return;
  keep_above<<<grid_for(size, kThreads), kThreads, 0, stream>>>(input, out, size, threshold);
  check_launch("keep_above");
}

}  // namespace sample
