// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

namespace sample {

namespace {

constexpr int kWarp = 32;

// One warp a row: the sum stays in registers.
template <typename T>
__global__ void normalise(RmsNorm norm) {
  for (std::int64_t row = blockIdx.x; row < norm.extent.rows; row += gridDim.x) {
    float sum = norm.partial<T>(row, threadIdx.x, kWarp);
    for (int offset = kWarp / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    norm.scale<T>(row, sum, threadIdx.x, kWarp);
  }
}

}  // namespace

void run_cuda(const RmsNorm& norm, cudaStream_t stream) {
  if (norm.extent.size() == 0) return;
  const auto kernel = norm.dtype == Dtype::kFloat32 ? normalise<float> : normalise<Bfloat16>;
  kernel<<<grid_for(norm.extent.rows, 1), kWarp, 0, stream>>>(norm);
  check_launch("rmsnorm");
}

}  // namespace sample
