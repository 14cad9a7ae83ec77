// SPDX-License-Identifier: Apache-2.0
// The one file of common_ops that reads torch's headers.
#include "python_module.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include <tinyjson.h>

#include "kernels.h"

namespace {

using at::Tensor;

template <typename Kernel>
void run(const Kernel& kernel, const Tensor& where) {
  if (where.is_cuda()) {
    const c10::cuda::CUDAGuard guard(where.device());
    sample::run_cuda(kernel, c10::cuda::getCurrentCUDAStream());
  } else {
    sample::run_cpu(kernel);
  }
}

void check_matrix(const char* name, const Tensor& tensor, at::ScalarType dtype) {
  TORCH_CHECK(tensor.dim() == 2 && tensor.is_contiguous(), name, " must be a contiguous matrix");
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " must have dtype ", dtype);
}

void check_scalar(const char* name, const Tensor& tensor, const Tensor& beside) {
  TORCH_CHECK(tensor.numel() == 1 && tensor.scalar_type() == at::kFloat, name, " must be one float32");
  TORCH_CHECK(tensor.device() == beside.device(), name, " must be on ", beside.device());
}

sample::Dtype dtype_of(const Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16,
              "expected float32 or bfloat16, got ", tensor.scalar_type());
  return tensor.scalar_type() == at::kFloat ? sample::Dtype::kFloat32 : sample::Dtype::kBfloat16;
}

std::uint8_t* bytes(const Tensor& tensor) { return static_cast<std::uint8_t*>(tensor.data_ptr()); }

std::tuple<Tensor, Tensor> scaled_fp4_quant(const Tensor& input, const Tensor& global_scale) {
  check_matrix("input", input, input.scalar_type());
  check_scalar("global_scale", global_scale, input);
  const tinyview::Extent extent{input.size(0), input.size(1)};
  TORCH_CHECK(extent.columns % sample::kBlock == 0,
              tinyfmt::format("columns must be a multiple of {}: {}", sample::kBlock, extent));
  const Tensor packed = at::empty({extent.rows, extent.columns / 2}, input.options().dtype(at::kByte));
  const Tensor scales =
      at::empty({extent.rows, extent.columns / sample::kBlock}, input.options().dtype(at::kFloat8_e4m3fn));
  run(sample::Quant{input.data_ptr(), dtype_of(input), global_scale.data_ptr<float>(), bytes(packed), bytes(scales), extent},
      input);
  return {packed, scales};
}

Tensor scaled_fp4_mm(const Tensor& a, const Tensor& b, const Tensor& a_scales, const Tensor& b_scales,
                     const Tensor& alpha) {
  check_matrix("a", a, at::kByte);
  check_matrix("b", b, at::kByte);
  check_matrix("a_scales", a_scales, at::kFloat8_e4m3fn);
  check_matrix("b_scales", b_scales, at::kFloat8_e4m3fn);
  check_scalar("alpha", alpha, a);
  const std::int64_t m = a.size(0), n = b.size(0), k = a.size(1) * 2;
  TORCH_CHECK(b.size(1) * 2 == k && k % sample::kBlock == 0, "a and b must share a k that is a multiple of 16");
  TORCH_CHECK(a_scales.size(0) == m && b_scales.size(0) == n && a_scales.size(1) == k / sample::kBlock &&
                  b_scales.size(1) == k / sample::kBlock,
              "scales must be [rows, k / 16]");
  TORCH_CHECK(b.device() == a.device() && a_scales.device() == a.device() && b_scales.device() == a.device(),
              "all operands must be on ", a.device());
  const Tensor out = at::empty({m, n}, a.options().dtype(at::kFloat));
  run(sample::Matmul{bytes(a), bytes(b), bytes(a_scales), bytes(b_scales), alpha.data_ptr<float>(), out.data_ptr<float>(),
                     m, n, k},
      a);
  return out;
}

Tensor rmsnorm(const Tensor& input, const Tensor& weight, double eps) {
  check_matrix("input", input, input.scalar_type());
  TORCH_CHECK(weight.dim() == 1 && weight.is_contiguous() && weight.size(0) == input.size(1) &&
                  weight.scalar_type() == input.scalar_type() && weight.device() == input.device(),
              "weight must be a contiguous vector like a row of input");
  const Tensor out = at::empty_like(input);
  run(sample::RmsNorm{input.data_ptr(), weight.data_ptr(), out.data_ptr(), dtype_of(input), static_cast<float>(eps),
                      {input.size(0), input.size(1)}},
      input);
  return out;
}

std::tuple<std::int64_t, std::int64_t> allocation_range(const Tensor& tensor) {
  const c10::cuda::CUDAGuard guard(tensor.device());
  const sample::Allocation allocation = sample::allocation_of(tensor.data_ptr());
  return {static_cast<std::int64_t>(allocation.base), static_cast<std::int64_t>(allocation.size)};
}

std::string build_info() {
  return tinyjson::object({{"variant", SAMPLE_VARIANT}, {"cuda", std::to_string(CUDART_VERSION)}});
}

}  // namespace

TORCH_LIBRARY(sample_kernel, m) {
  m.def("scaled_fp4_quant(Tensor input, Tensor global_scale) -> (Tensor, Tensor)");
  m.def("scaled_fp4_mm(Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor alpha) -> Tensor");
  m.def("rmsnorm(Tensor input, Tensor weight, float eps) -> Tensor");
  m.def("allocation_range(Tensor tensor) -> (int, int)");
  m.def("build_info() -> str", build_info);
}

TORCH_LIBRARY_IMPL(sample_kernel, CPU, m) {
  m.impl("scaled_fp4_quant", scaled_fp4_quant);
  m.impl("scaled_fp4_mm", scaled_fp4_mm);
  m.impl("rmsnorm", rmsnorm);
}

TORCH_LIBRARY_IMPL(sample_kernel, CUDA, m) {
  m.impl("scaled_fp4_quant", scaled_fp4_quant);
  m.impl("scaled_fp4_mm", scaled_fp4_mm);
  m.impl("rmsnorm", rmsnorm);
  m.impl("allocation_range", allocation_range);
}

SAMPLE_PYTHON_MODULE(common_ops)
