// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <cuda/std/utility>

#include "kernels.h"

namespace sample {

namespace {

cuda::std::pair<CUresult, Allocation> query(const void* device_pointer) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  const CUresult result = cuMemGetAddressRange(&base, &size, reinterpret_cast<CUdeviceptr>(device_pointer));
  return {result, Allocation{static_cast<std::uintptr_t>(base), size}};
}

}  // namespace

Allocation allocation_of(const void* device_pointer) {
  const auto [result, allocation] = query(device_pointer);
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    throw std::runtime_error(tinyfmt::format("allocation_range: {}", text == nullptr ? "unknown driver error" : text));
  }
  return allocation;
}

}  // namespace sample
