"""Contractions: dot_general and convolution. Precision is decided in precision.py alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..precision import of as precision_of
from .core import Value, emit, emit_generic, i64s, type_of


def dot_general(
    x: Value,
    y: Value,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    dtype: torch.dtype | None = None,
) -> Value:
    """Contract x with y; result dims are batch, x's free, y's free; dtype is the accumulator's."""
    dtype = dtype or x.dtype
    free_x = [n for i, n in enumerate(x.shape) if i not in (*contract[0], *batch[0])]
    free_y = [n for i, n in enumerate(y.shape) if i not in (*contract[1], *batch[1])]
    shape = (*(x.shape[i] for i in batch[0]), *free_x, *free_y)
    batching = f"batching_dims = {list(batch[0])} x {list(batch[1])}, " if batch[0] else ""
    mode = precision_of(x.dtype).value
    text = (
        f"stablehlo.dot_general {x.name}, {y.name}, {batching}"
        f"contracting_dims = {list(contract[0])} x {list(contract[1])}, "
        f"precision = [{mode}, {mode}] : "
        f"({x.type}, {y.type}) -> {type_of(shape, dtype)}"
    )
    return emit(text, shape, dtype)


def matmul(x: Value, y: Value, dtype: torch.dtype | None = None) -> Value:
    """x[..., m, k] @ y[..., k, n] with equal leading dimensions."""
    batch = list(range(x.ndim - 2))
    return dot_general(x, y, ([x.ndim - 1], [y.ndim - 2]), (batch, batch), dtype)


def convolution(
    x: Value,
    kernel: Value,
    *,
    layout: str,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    kernel_dilation: Sequence[int] | None = None,
    feature_groups: int = 1,
    batch_groups: int = 1,
    dtype: torch.dtype | None = None,
) -> Value:
    """`layout` is StableHLO's, e.g. "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"."""
    dtype = dtype or x.dtype
    rank = x.ndim - 2
    base, dilation = tuple(base_dilation or (1,) * rank), tuple(kernel_dilation or (1,) * rank)
    lhs, rest = layout.split("]x[")
    rhs, out = rest.split("]->[")
    lhs_dims, rhs_dims, out_dims = (
        [d.strip() for d in part.strip("[]").split(",")] for part in (lhs, rhs, out)
    )
    sizes = {"b": x.shape[lhs_dims.index("b")] // batch_groups}
    sizes["f"] = kernel.shape[rhs_dims.index("o")]
    for i in range(rank):
        n, k = x.shape[lhs_dims.index(str(i))], kernel.shape[rhs_dims.index(str(i))]
        padded = (max(0, (n - 1) * base[i] + 1) if n else 0) + sum(padding[i])
        extent = (k - 1) * dilation[i] + 1 if k else 0
        sizes[str(i)] = 0 if padded < extent else (padded - extent) // strides[i] + 1
    shape = tuple(sizes[d] for d in out_dims)
    pads = ", ".join(f"[{low}, {high}]" for low, high in padding)
    dense = f"dense<[{pads}]> : tensor<{rank}x2xi64>" if rank else "dense<> : tensor<0x2xi64>"
    mode = f"#stablehlo<precision {precision_of(x.dtype).value}>"
    attributes = (
        f"window_strides = {i64s(strides)}, padding = {dense}, lhs_dilation = {i64s(base)}, "
        f"rhs_dilation = {i64s(dilation)}, dimension_numbers = #stablehlo.conv<{layout}>, "
        f"feature_group_count = {feature_groups} : i64, batch_group_count = {batch_groups} : i64, "
        f"precision_config = [{mode}, {mode}]"
    )
    return emit_generic("stablehlo.convolution", [x, kernel], [(shape, dtype)], attributes)[0]
