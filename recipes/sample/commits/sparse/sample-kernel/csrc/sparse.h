// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace sample {

void keep_above_cuda(const float* input, float* out, std::int64_t size, float threshold, cudaStream_t stream);

}  // namespace sample
