// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace sample {

// out [d] = softmax(query [d] @ keys [n, d] transposed / sqrt(d)) @ values [n, d], d <= 1024
void decode_attention_cuda(const float* query, const float* keys, const float* values, float* out, std::int64_t n,
                           std::int64_t d, cudaStream_t stream);

}  // namespace sample
