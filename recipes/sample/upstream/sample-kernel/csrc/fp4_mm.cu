// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

namespace sample {

namespace {

constexpr int kThreads = 128;

__global__ void multiply(Matmul matmul) {
  const std::int64_t elements = matmul.m * matmul.n;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += stride) matmul.element(i);
}

}  // namespace

void run_cuda(const Matmul& matmul, cudaStream_t stream) {
  if (matmul.m * matmul.n == 0) return;
  multiply<<<grid_for(matmul.m * matmul.n, kThreads), kThreads, 0, stream>>>(matmul);
  check_launch("scaled_fp4_mm");
}

}  // namespace sample
