"""Operations with a body: reductions, windows, sorting, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..dtypes import is_unsigned
from . import elementwise as ew
from .core import Value, builder, constant, emit_generic, i64s, type_of

Body = Callable[..., Value | Sequence[Value]]


def lowest(dtype: torch.dtype) -> Value:
    """The identity of maximum: -inf, the least integer, or False."""
    if dtype is torch.bool:
        return constant(False, dtype)
    infinite = dtype.is_floating_point and dtype.itemsize > 1
    return constant(float("-inf") if infinite else _info(dtype).min, dtype)


def highest(dtype: torch.dtype) -> Value:
    """The identity of minimum: +inf, the greatest integer, or True."""
    if dtype is torch.bool:
        return constant(True, dtype)
    infinite = dtype.is_floating_point and dtype.itemsize > 1
    return constant(float("inf") if infinite else _info(dtype).max, dtype)


def _info(dtype: torch.dtype) -> torch.finfo | torch.iinfo:
    return torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)


def reduce(
    operands: Sequence[Value], inits: Sequence[Value], dims: Sequence[int], body: Body
) -> tuple[Value, ...]:
    """Fold `dims` away; body takes the accumulators, then the elements, all scalars."""
    dims = sorted({d % operands[0].ndim for d in dims}) if operands[0].ndim else []
    shape = [n for i, n in enumerate(operands[0].shape) if i not in dims]
    scalars = [((), x.dtype) for x in operands]
    region = builder().region(scalars + scalars, body)
    results = [(shape, x.dtype) for x in operands]
    attributes = f"dimensions = {i64s(dims)}"
    return emit_generic("stablehlo.reduce", [*operands, *inits], results, attributes, [region])


def _reducer(
    op: Callable[[Value, Value], Value], init: Callable[[torch.dtype], Value]
) -> Callable[[Value, Sequence[int]], Value]:
    def reducer(x: Value, dims: Sequence[int]) -> Value:
        return reduce([x], [init(x.dtype)], dims, op)[0] if dims else x

    return reducer


reduce_sum = _reducer(ew.add, lambda dtype: constant(0, dtype))
reduce_prod = _reducer(ew.multiply, lambda dtype: constant(1, dtype))
reduce_max = _reducer(ew.maximum, lowest)
reduce_min = _reducer(ew.minimum, highest)
reduce_and = _reducer(ew.and_, lambda dtype: constant(_all_ones(dtype), dtype))
reduce_or = _reducer(ew.or_, lambda dtype: constant(0, dtype))
reduce_xor = _reducer(ew.xor, lambda dtype: constant(0, dtype))


def _all_ones(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 1
    return torch.iinfo(dtype).max if is_unsigned(dtype) else -1


def reduce_window(
    operands: Sequence[Value],
    inits: Sequence[Value],
    body: Body,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilations: Sequence[int] | None = None,
    window_dilations: Sequence[int] | None = None,
) -> tuple[Value, ...]:
    """Fold every window of the operands; all attributes have one entry a dimension."""
    rank = operands[0].ndim
    base = tuple(base_dilations or (1,) * rank)
    dilation = tuple(window_dilations or (1,) * rank)
    shape = []
    for n, w, s, (low, high), b, d in zip(
        operands[0].shape, window, strides, padding, base, dilation, strict=True
    ):
        padded = max(0, (n - 1) * b + 1 if n else 0) + low + high
        extent = (w - 1) * d + 1
        shape.append(0 if padded < extent else (padded - extent) // s + 1)
    scalars = [((), x.dtype) for x in operands]
    region = builder().region(scalars + scalars, body)
    attributes = (
        f"window_dimensions = {i64s(window)}, window_strides = {i64s(strides)}, "
        f"base_dilations = {i64s(base)}, window_dilations = {i64s(dilation)}, "
        f"padding = {_pairs(padding)}"
    )
    results = [(shape, x.dtype) for x in operands]
    operands = [*operands, *inits]
    return emit_generic("stablehlo.reduce_window", operands, results, attributes, [region])


def _pairs(padding: Sequence[tuple[int, int]]) -> str:
    if not padding:
        return "dense<> : tensor<0x2xi64>"
    rows = ", ".join(f"[{low}, {high}]" for low, high in padding)
    return f"dense<[{rows}]> : tensor<{len(padding)}x2xi64>"


def select_and_scatter(
    operand: Value,
    source: Value,
    init: Value,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    select: Body = ew.ge,
    scatter: Body = ew.add,
) -> Value:
    """Add each source element to the operand position that its window selects."""
    scalars = [((), operand.dtype)] * 2
    regions = [builder().region(scalars, select), builder().region(scalars, scatter)]
    attributes = (
        f"window_dimensions = {i64s(window)}, window_strides = {i64s(strides)}, "
        f"padding = {_pairs(padding)}"
    )
    operands = [operand, source, init]
    result = [(operand.shape, operand.dtype)]
    return emit_generic("stablehlo.select_and_scatter", operands, result, attributes, regions)[0]


def sort(operands: Sequence[Value], dim: int, less: Body, stable: bool = True) -> tuple[Value, ...]:
    """Sort all operands together along `dim`; less takes pairs (x0, y0, x1, y1, ...) of scalars."""
    pairs = [aval for x in operands for aval in [((), x.dtype)] * 2]
    region = builder().region(pairs, less)
    attributes = f"dimension = {dim} : i64, is_stable = {str(stable).lower()}"
    results = [(x.shape, x.dtype) for x in operands]
    return emit_generic("stablehlo.sort", operands, results, attributes, [region])


def while_(condition: Body, body: Body, carry: Sequence[Value]) -> tuple[Value, ...]:
    """Repeat body while condition holds; both take the carried values."""
    avals = [(x.shape, x.dtype) for x in carry]
    regions = [builder().region(avals, condition), builder().region(avals, body)]
    return emit_generic("stablehlo.while", carry, avals, "", regions)


def fori(count: int, body: Callable[..., Sequence[Value]], carry: Sequence[Value]) -> list[Value]:
    """carry = body(i, *carry) for i in 0 .. count-1, i an i64 scalar."""
    index = constant(0, torch.int64)

    def step(i: Value, *values: Value) -> Sequence[Value]:
        return [ew.add(i, constant(1, torch.int64)), *body(i, *values)]

    def more(i: Value, *values: Value) -> Value:
        return ew.lt(i, constant(count, torch.int64))

    return list(while_(more, step, [index, *carry])[1:])


def if_(predicate: Value, on_true: Body, on_false: Body, results: Sequence[tuple]) -> tuple:
    """Run one of two branches without arguments; results lists their (shape, dtype)."""
    regions = [builder().region([], on_true), builder().region([], on_false)]
    return emit_generic("stablehlo.if", [predicate], results, "", regions)


def top_k(x: Value, k: int) -> tuple[Value, Value]:
    """The k largest along the last dimension, descending, with their i32 indices."""
    shape = (*x.shape[:-1], k)
    values, indices = type_of(shape, x.dtype), type_of(shape, torch.int32)
    text = f"chlo.top_k({x.name}, k = {k}) : {x.type} -> ({values}, {indices})"
    first, second = builder().emit(text, (shape, x.dtype), (shape, torch.int32))
    return first, second
