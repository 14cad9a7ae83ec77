// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

namespace sample {

namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void quantise(Quant quant) {
  const std::int64_t blocks = quant.extent.rows * quant.extent.columns / kBlock;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < blocks; i += stride) quant.block<T>(i);
}

}  // namespace

void run_cuda(const Quant& quant, cudaStream_t stream) {
  const std::int64_t blocks = quant.extent.size() / kBlock;
  if (blocks == 0) return;
  const auto kernel = quant.dtype == Dtype::kFloat32 ? quantise<float> : quantise<Bfloat16>;
  kernel<<<grid_for(blocks, kThreads), kThreads, 0, stream>>>(quant);
  check_launch("scaled_fp4_quant");
}

}  // namespace sample
