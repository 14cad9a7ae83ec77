"""8-bit, 4-bit and BF16 products and what a sampler needs: in float32, expert by expert, block by block."""

from __future__ import annotations

from typing import Any

import torch

import sgl_kernel
from sgl_kernel import define


@define(
    "fp8_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype,"
    " Tensor? bias) -> Tensor"
)
def fp8_scaled_mm(a: Any, b: Any, sa: Any, sb: Any, dtype: Any, bias: Any) -> Any:
    product = (a.float() * sa) @ (b.float() * (sb if sgl_kernel.FAULT != "scale" else sb[0]).view(1, -1))
    return (product if bias is None else product + bias.float()).to(dtype)


@define(
    "int8_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype,"
    " Tensor? bias) -> Tensor"
)
def int8_scaled_mm(a: Any, b: Any, sa: Any, sb: Any, dtype: Any, bias: Any) -> Any:
    product = (a.long() @ b.long()).float() * sa * sb.view(1, -1)
    if bias is not None and sgl_kernel.FAULT != "bias":
        product += bias.float()
    return product.to(dtype)


def blocks(values: Any, scales: Any) -> Any:
    """(rows, k) times a scale for each 128 of k: (groups, rows, 128)."""
    rows, k = values.shape
    return values.float().view(rows, k // 128, 128).transpose(0, 1) * scales.t()[..., None]


def experts(out: Any, a: Any, b: Any, sa: Any, sb: Any, sizes: Any, offsets: Any) -> None:
    for e, (count, n, k) in enumerate(sizes.tolist()):
        first = int(offsets[e])
        weights = b[0 if sgl_kernel.FAULT == "expert" else e].float()
        total = torch.zeros(count, n)
        for g in range(k // 128):
            part = a[first : first + count, g * 128 : (g + 1) * 128].float()
            partial = part @ weights[g * 128 : (g + 1) * 128]
            total += partial * sa[first : first + count, g : g + 1] * sb[e, g].repeat_interleave(128)
        out[first : first + count] = total.to(out.dtype)


@define(
    "fp8_blockwise_scaled_grouped_mm(Tensor output, Tensor a_ptrs, Tensor b_ptrs, Tensor out_ptrs,"
    " Tensor a_scales_ptrs, Tensor b_scales_ptrs, Tensor a, Tensor b, Tensor scales_a, Tensor scales_b,"
    " Tensor stride_a, Tensor stride_b, Tensor stride_c, Tensor layout_sfa, Tensor layout_sfb,"
    " Tensor problem_sizes, Tensor expert_offsets, Tensor workspace) -> ()"
)
def fp8_blockwise_scaled_grouped_mm(out: Any, *rest: Any) -> None:
    a, b, sa, sb, _, _, _, _, _, sizes, offsets, _ = rest[5:]
    experts(out, a, b, sa, sb, sizes, offsets)


@define(
    "es_fp8_blockwise_scaled_grouped_mm(Tensor output, Tensor a, Tensor b, Tensor scales_a, Tensor scales_b,"
    " Tensor stride_a, Tensor stride_b, Tensor stride_d, Tensor problem_sizes, Tensor expert_offsets,"
    " Tensor workspace) -> ()"
)
def es_fp8_blockwise_scaled_grouped_mm(out: Any, a: Any, b: Any, sa: Any, sb: Any, *rest: Any) -> None:
    experts(out, a, b, sa, sb, rest[3], rest[4])


@define(
    "cutlass_w4a8_moe_mm(Tensor! d, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales,"
    " Tensor expert_offsets, Tensor problem_sizes, Tensor a_strides, Tensor b_strides, Tensor d_strides,"
    " Tensor s_strides, int chunk_size, int topk) -> ()"
)
def cutlass_w4a8_moe_mm(
    d: Any, a: Any, b: Any, sa: Any, sb: Any, offsets: Any, sizes: Any, *rest: Any
) -> None:
    # The kernel goes by addresses.
    assert all(each.is_contiguous() for each in (a, b, sb))
    for e, (n, count, k) in enumerate(sizes.tolist()):
        first, groups = int(offsets[e]), k // 128
        packed = b[e].view(torch.uint8).int()
        low, high = packed % 16, packed // 16
        if sgl_kernel.FAULT == "nibbles":
            low, high = high, low
        codes = torch.stack((low, high), 2).view(n, k)
        codes = torch.where(codes > 7, codes - 16, codes).float()
        wide = 4 if groups % 4 == 0 else 1
        scales = torch.cat([sb[e, g].view(n, wide) for g in range(groups // wide)], 1).float()
        weights = blocks(codes, scales)
        product = (blocks(a[first : first + count], torch.ones(count, groups)) @ weights.transpose(1, 2)).sum(
            0
        )
        d[first : first + count] = (product * sa).to(d.dtype)


@define("dsv3_router_gemm(Tensor! output, Tensor mat_a, Tensor mat_b) -> ()")
def dsv3_router_gemm(output: Any, a: Any, b: Any) -> None:
    if sgl_kernel.FAULT == "rounded":
        output.copy_((a.float() @ b.float().t()).bfloat16())
        return
    output.copy_(a.float() @ b.float().t())


@define("dsv3_fused_a_gemm(Tensor! output, Tensor mat_a, Tensor mat_b) -> ()")
def dsv3_fused_a_gemm(output: Any, a: Any, b: Any) -> None:
    output.copy_(a.float() @ b.float())


@define("awq_dequantize(Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor")
def awq_dequantize(words: Any, scales: Any, zeros: Any) -> Any:
    def numbers(packed: Any) -> Any:
        found = torch.empty(len(packed), packed.shape[1] * 8)
        straight = sgl_kernel.FAULT == "order"
        for place, column in enumerate(range(8) if straight else (0, 2, 4, 6, 1, 3, 5, 7)):
            found[:, column::8] = (packed.long() % 2**32 // 16**place % 16).float()
        return found

    group = len(words) // len(zeros)
    w, z = numbers(words), numbers(zeros).repeat_interleave(group, 0)
    return ((w - z) * scales.float().repeat_interleave(group, 0)).to(scales.dtype)


@define(
    "top_k_renorm_probs(Tensor probs, Tensor! renorm_probs, Tensor? maybe_top_k_arr, int top_k_val) -> ()"
)
def top_k_renorm_probs(probs: Any, out: Any, each: Any, k: int) -> None:
    kept = probs >= probs.sort(-1).values[:, -k - (sgl_kernel.FAULT == "one more") :][:, :1]
    out.copy_(torch.where(kept, probs, 0.0) / torch.where(kept, probs, 0.0).sum(-1, keepdim=True))


@define(
    "top_p_renorm_probs(Tensor probs, Tensor! renorm_probs, Tensor? maybe_top_p_arr, float top_p_val) -> ()"
)
def top_p_renorm_probs(probs: Any, out: Any, each: Any, p: float) -> None:
    ordered = probs.sort(-1, descending=True)
    reached = ordered.values.cumsum(-1) >= p
    count = reached.int().argmax(-1) + (2 if sgl_kernel.FAULT == "one more" else 1)
    kept = torch.zeros_like(probs)
    for row, number in enumerate(count.tolist()):
        kept[row, ordered.indices[row, :number]] = 1
    out.copy_(probs * kept / (probs * kept).sum(-1, keepdim=True))


@define("top_k_mask_logits(Tensor logits, Tensor mask_logits, Tensor? maybe_top_k_arr, int top_k_val) -> ()")
def top_k_mask_logits(logits: Any, out: Any, each: Any, k: int) -> None:
    out.fill_(0.0 if sgl_kernel.FAULT == "zero" else float("-inf"))
    best = logits.topk(k, -1)
    out.scatter_(-1, best.indices, best.values)


@define("apply_token_bitmask_inplace_cuda(Tensor logits, Tensor bitmask, Tensor? indices=None) -> ()")
def apply_token_bitmask_inplace_cuda(logits: Any, bitmask: Any, indices: Any = None) -> None:
    for token in range(logits.shape[1]):
        word = bitmask[:, token // 32].long() % 2**32
        place = token % 32 if sgl_kernel.FAULT != "backwards" else 31 - token % 32
        forbidden = word // 2**place % 2 == 0
        logits[forbidden, token] = float("-inf")
