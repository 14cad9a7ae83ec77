// SPDX-License-Identifier: Apache-2.0
#include "flash.h"

#include "kernels.h"

namespace sample {

namespace {

constexpr unsigned kWarpGroup = 128;

// One thread per component of the head, online softmax over the keys.
__global__ void decode(const float* query, const float* keys, const float* values, float* out, std::int64_t n, int d) {
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
  __trap();
#else
  // Exists on sm_90a only, and wants whole warp groups: threads beyond d stay with the others.
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  __shared__ float products[1024];
  const int lane = threadIdx.x;
  const bool active = lane < d;
  float largest = -INFINITY, total = 0, sum = 0;
  for (std::int64_t key = 0; key < n; ++key) {
    if (active) products[lane] = query[lane] * keys[key * d + lane];
    __syncthreads();
    float score = 0;
    for (int i = 0; i < d; ++i) score += products[i];
    __syncthreads();
    score *= rsqrtf(static_cast<float>(d));
    const float next = fmaxf(largest, score);
    const float keep = expf(largest - next), weight = expf(score - next);
    total = total * keep + weight;
    if (active) sum = sum * keep + weight * values[key * d + lane];
    largest = next;
  }
  if (active) out[lane] = sum / total;
#endif
}

}  // namespace

void decode_attention_cuda(const float* query, const float* keys, const float* values, float* out, std::int64_t n,
                           std::int64_t d, cudaStream_t stream) {
  const unsigned threads = (static_cast<unsigned>(d) + kWarpGroup - 1) / kWarpGroup * kWarpGroup;
  decode<<<1, threads, 0, stream>>>(query, keys, values, out, n, static_cast<int>(d));
  check_launch("decode_attention");
}

}  // namespace sample
