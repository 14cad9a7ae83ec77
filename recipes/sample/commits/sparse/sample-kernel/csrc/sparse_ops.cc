// SPDX-License-Identifier: Apache-2.0
#include "python_module.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "sparse.h"

namespace {

at::Tensor keep_above(const at::Tensor& input, double threshold) {
  TORCH_CHECK(input.is_contiguous() && input.scalar_type() == at::kFloat, "input must be contiguous float32");
  const c10::cuda::CUDAGuard guard(input.device());
  const at::Tensor out = at::empty_like(input);
  sample::keep_above_cuda(input.data_ptr<float>(), out.data_ptr<float>(), input.numel(), static_cast<float>(threshold),
                          c10::cuda::getCurrentCUDAStream());
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sample_kernel, m) { m.def("keep_above(Tensor input, float threshold) -> Tensor"); }

TORCH_LIBRARY_IMPL(sample_kernel, CUDA, m) { m.impl("keep_above", keep_above); }

SAMPLE_PYTHON_MODULE(sparse_ops)
