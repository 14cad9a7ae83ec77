// SPDX-License-Identifier: Apache-2.0
#include "python_module.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "flash.h"

namespace {

using at::Tensor;

Tensor decode_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
  TORCH_CHECK(query.dim() == 1 && key.dim() == 2 && key.sizes() == value.sizes() && key.size(1) == query.size(0),
              "expected query [d], key and value [n, d]");
  TORCH_CHECK(query.size(0) >= 1 && query.size(0) <= 1024 && key.size(0) >= 1, "expected 1 <= d <= 1024 and n >= 1");
  for (const Tensor& tensor : {query, key, value}) {
    TORCH_CHECK(tensor.is_contiguous() && tensor.scalar_type() == at::kFloat && tensor.device() == query.device(),
                "operands must be contiguous float32 on one device");
  }
  const c10::cuda::CUDAGuard guard(query.device());
  const Tensor out = at::empty_like(query);
  sample::decode_attention_cuda(query.data_ptr<float>(), key.data_ptr<float>(), value.data_ptr<float>(),
                                out.data_ptr<float>(), key.size(0), key.size(1), c10::cuda::getCurrentCUDAStream());
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sample_kernel, m) {
  m.def("decode_attention(Tensor query, Tensor key, Tensor value) -> Tensor");
}

TORCH_LIBRARY_IMPL(sample_kernel, CUDA, m) { m.impl("decode_attention", decode_attention); }

SAMPLE_PYTHON_MODULE(flash_ops)
