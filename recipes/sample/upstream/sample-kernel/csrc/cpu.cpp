// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

namespace sample {

namespace {

template <typename T>
void quantise(const Quant& quant) {
  for (std::int64_t i = 0; i < quant.extent.size() / kBlock; ++i) quant.block<T>(i);
}

template <typename T>
void normalise(const RmsNorm& norm) {
  for (std::int64_t row = 0; row < norm.extent.rows; ++row) norm.scale<T>(row, norm.partial<T>(row, 0, 1), 0, 1);
}

}  // namespace

void run_cpu(const Quant& quant) {
  quant.dtype == Dtype::kFloat32 ? quantise<float>(quant) : quantise<Bfloat16>(quant);
}

void run_cpu(const Matmul& matmul) {
  for (std::int64_t i = 0; i < matmul.m * matmul.n; ++i) matmul.element(i);
}

void run_cpu(const RmsNorm& norm) {
  norm.dtype == Dtype::kFloat32 ? normalise<float>(norm) : normalise<Bfloat16>(norm);
}

}  // namespace sample
