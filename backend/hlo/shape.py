"""Movement: reshapes, broadcasts, slices, padding, concatenation. No arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .core import Shape, Value, constant, emit, numel, type_of


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """Row-major reshape to a shape with as many elements."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    if numel(shape) != x.numel:
        raise TypeError(f"hlo.reshape: {x.type} to {list(shape)} changes the number of elements")
    text = f"stablehlo.reshape {x.name} : ({x.type}) -> {type_of(shape, x.dtype)}"
    return emit(text, shape, x.dtype)


def transpose(x: Value, permutation: Sequence[int]) -> Value:
    """Dimension i of the result is dimension permutation[i] of x."""
    permutation = tuple(permutation)
    if permutation == tuple(range(x.ndim)):
        return x
    shape = tuple(x.shape[p] for p in permutation)
    text = f"stablehlo.transpose {x.name}, dims = {list(permutation)} : "
    return emit(text + f"({x.type}) -> {type_of(shape, x.dtype)}", shape, x.dtype)


def broadcast_in_dim(x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Dimension i of x becomes dimension dims[i] of the result; a size of 1 expands."""
    shape = tuple(shape)
    if x.shape == shape and tuple(dims) == tuple(range(x.ndim)):
        return x
    text = f"stablehlo.broadcast_in_dim {x.name}, dims = {list(dims)} : "
    return emit(text + f"({x.type}) -> {type_of(shape, x.dtype)}", shape, x.dtype)


def broadcast(x: Value, shape: Sequence[int]) -> Value:
    """Broadcast as torch does: dimensions are aligned at the end."""
    shape = tuple(shape)
    skip = len(shape) - x.ndim
    return broadcast_in_dim(x, shape, range(skip, len(shape)))


def broadcast_shapes(*shapes: Shape) -> Shape:
    return tuple(torch.broadcast_shapes(*shapes))


def expand_dims(x: Value, dims: Sequence[int]) -> Value:
    """Insert dimensions of size 1 so that they stand at `dims` of the result."""
    rank = x.ndim + len(dims)
    new = {d % rank for d in dims}
    sizes = iter(x.shape)
    return reshape(x, [1 if i in new else next(sizes) for i in range(rank)])


def squeeze(x: Value, dims: Sequence[int]) -> Value:
    """Remove the given dimensions, each of size 1."""
    drop = {d % x.ndim for d in dims}
    return reshape(x, [size for i, size in enumerate(x.shape) if i not in drop])


def slice_(
    x: Value,
    start: Sequence[int],
    limit: Sequence[int],
    step: Sequence[int] | None = None,
) -> Value:
    """x[start:limit:step] in every dimension; static bounds."""
    step = tuple(step) if step else (1,) * x.ndim
    if all(s == 0 for s in start) and tuple(limit) == x.shape and all(s == 1 for s in step):
        return x
    bounds = list(zip(start, limit, step, strict=True))
    shape = tuple(max(0, -(-(b - a) // s)) for a, b, s in bounds)
    text = f"stablehlo.slice {x.name} [{', '.join(f'{a}:{b}:{s}' for a, b, s in bounds)}] : "
    return emit(text + f"({x.type}) -> {type_of(shape, x.dtype)}", shape, x.dtype)


def slice_in_dim(x: Value, start: int, limit: int, step: int = 1, dim: int = 0) -> Value:
    dim %= x.ndim
    starts, limits, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[dim], limits[dim], steps[dim] = start, limit, step
    return slice_(x, starts, limits, steps)


def dynamic_slice(x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    """A window of static size at scalar integer offsets, clamped so that it fits."""
    if tuple(sizes) == x.shape:
        return x
    names = ", ".join(start.name for start in starts)
    types = ", ".join([x.type, *(start.type for start in starts)])
    text = f"stablehlo.dynamic_slice {x.name}, {names}, sizes = {list(sizes)} : "
    return emit(text + f"({types}) -> {type_of(sizes, x.dtype)}", sizes, x.dtype)


def dynamic_update_slice(x: Value, update: Value, starts: Sequence[Value]) -> Value:
    """x with `update` written at scalar integer offsets, clamped so that it fits."""
    if update.shape == x.shape:
        return update
    names = ", ".join([x.name, update.name, *(start.name for start in starts)])
    types = ", ".join([x.type, update.type, *(start.type for start in starts)])
    text = f"stablehlo.dynamic_update_slice {names} : ({types}) -> {x.type}"
    return emit(text, x.shape, x.dtype)


def pad(
    x: Value,
    value: Value,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
) -> Value:
    """Pad with a scalar; negative low or high crops; interior goes between elements."""
    interior = tuple(interior) if interior else (0,) * x.ndim
    if not any(low) and not any(high) and not any(interior):
        return x
    shape = tuple(
        a + n + max(n - 1, 0) * i + b
        for n, a, b, i in zip(x.shape, low, high, interior, strict=True)
    )
    text = (
        f"stablehlo.pad {x.name}, {value.name}, low = {list(low)}, high = {list(high)}, "
        f"interior = {list(interior)} : ({x.type}, {value.type}) -> {type_of(shape, x.dtype)}"
    )
    return emit(text, shape, x.dtype)


def pad_zero(x: Value, low: Sequence[int], high: Sequence[int]) -> Value:
    return pad(x, constant(0, x.dtype), low, high)


def concatenate(xs: Sequence[Value], dim: int = 0) -> Value:
    """Join along `dim`; all other sizes and the dtype are equal."""
    if len(xs) == 1:
        return xs[0]
    dim %= xs[0].ndim
    shape = list(xs[0].shape)
    shape[dim] = sum(x.shape[dim] for x in xs)
    names, types = ", ".join(x.name for x in xs), ", ".join(x.type for x in xs)
    text = f"stablehlo.concatenate {names}, dim = {dim} : ({types}) -> "
    return emit(text + type_of(shape, xs[0].dtype), shape, xs[0].dtype)


def reverse(x: Value, dims: Sequence[int]) -> Value:
    dims = sorted({d % x.ndim for d in dims})
    if not dims:
        return x
    return emit(f"stablehlo.reverse {x.name}, dims = {dims} : {x.type}", x.shape, x.dtype)


def iota(shape: Sequence[int], dim: int = 0, dtype: torch.dtype = torch.int64) -> Value:
    """The index along `dim` of every element."""
    return emit(f"stablehlo.iota dim = {dim} : {type_of(shape, dtype)}", shape, dtype)
