"""Tensors made from sizes and scalars, and copies of tensors with another dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from .. import hlo
from ..dtypes import OPMATH, is_integer
from ..hlo import Value
from ..promotion import scalar
from ..registry import Aval, decompose, lower
from .elementary import like
from .pointwise import each

aten = torch.ops.aten


# Conversion and copies.


def cast(x: Value, dtype: torch.dtype) -> Value:
    """Convert as torch does on the host.

    A float outside the range of an integer dtype wraps around as on x86, where XLA saturates; a
    narrow float is rounded from float32.
    """
    source = x.dtype
    if source.is_complex and not dtype.is_complex:
        return cast(hlo.real(x), dtype)
    if source.is_floating_point and is_integer(dtype):
        return hlo.convert(_truncate(x, dtype), dtype)
    if dtype.is_floating_point and dtype.itemsize <= 2:
        x = hlo.convert(x, torch.float32)
    if dtype is torch.float8_e4m3fn:  # the one without infinity; torch saturates it
        most = torch.finfo(dtype).max
        x = hlo.minimum(hlo.maximum(x, hlo.full_like(x, -most)), hlo.full_like(x, most))
    return hlo.convert(x, dtype)


def _truncate(x: Value, dtype: torch.dtype) -> Value:
    """Towards zero, in the integer that the processor converts to: its least if x does not fit."""
    x = hlo.convert(x, torch.float32 if x.dtype.itemsize < 4 else x.dtype)
    fits_word = dtype.itemsize < 4 or dtype is torch.int32
    word = torch.int32 if fits_word else torch.int64
    bound = float(2 ** (8 * word.itemsize - 1))
    fits = hlo.and_(hlo.ge(x, hlo.full_like(x, -bound)), hlo.lt(x, hlo.full_like(x, bound)))
    least = hlo.constant(torch.iinfo(word).min, word, x.shape)
    whole = hlo.select(fits, hlo.convert(x, word), least)
    if dtype is not torch.uint64:
        return whole
    above = hlo.ge(x, hlo.full_like(x, bound))
    return hlo.select(above, hlo.convert(x, dtype), hlo.convert(whole, dtype))


@lower(aten.copy)
def _copy(self: Value, src: Value, non_blocking: bool, aval: Aval) -> Value:
    return hlo.broadcast(cast(src, aval.dtype), aval.shape)


lower(aten.clone, lambda self: self)
lower(aten.lift_fresh_copy, lambda self: self)

# Tensors of one value.


def filled(argument: str, value: complex | None = None) -> Callable:
    """A tensor of the number given as `argument`, or of a constant."""

    def lowered(*, aval: Aval, **given: object) -> Value:
        number = scalar(given[argument] if value is None else value)
        return hlo.broadcast(cast(number, aval.dtype), aval.shape)

    return lowered


def constant(value: complex) -> Callable:
    return filled("", value)


for op in (aten.zero, aten.zeros, aten.zeros_like, aten.new_zeros, aten._efficientzerotensor):
    lower(op, constant(0))
for op in (aten.ones, aten.ones_like, aten.new_ones):
    lower(op, constant(1))
for op in (aten.full, aten.full_like, aten.new_full):
    lower(op, filled("fill_value"), dynamic="fill_value")
each(aten.fill, "Scalar Tensor", filled("value"))
lower(aten.scalar_tensor, filled("s"), dynamic="s")

# Sequences. Their bounds decide shapes, so they are constants of the program.


def _arange(start: complex, step: complex, aval: Aval) -> Value:
    """start + i * step, computed in int64, or in float64 for the float dtypes that allow it."""
    if not aval.dtype.is_floating_point:
        wide, start, step = torch.int64, int(start.real), int(step.real)
    else:
        wide = OPMATH.get(aval.dtype, torch.float64)
    index = hlo.iota(aval.shape, 0, wide)
    value = hlo.add(hlo.multiply(index, hlo.full_like(index, step)), hlo.full_like(index, start))
    return cast(value, aval.dtype)


lower(aten.arange, lambda end, aval: _arange(0, 1, aval))
lower(aten.arange.start, lambda start, end, aval: _arange(start, 1, aval))
for overload in (aten.arange.start_step, aten.range.step):
    lower(overload, lambda start, end, step, aval: _arange(start, step, aval))


def _spaced(start: complex, end: complex, steps: int, dtype: torch.dtype) -> Value:
    """`steps` points from start to end, in a float dtype whose precision the step has too."""
    first, last = (torch.tensor(bound, dtype=dtype) for bound in (start, end))
    step = ((last - first) / max(steps - 1, 1)).item()
    count = hlo.iota((steps,))
    back = hlo.subtract(hlo.full_like(count, steps - 1), count)
    wide = OPMATH.get(dtype, dtype)

    def scale(index: Value) -> Value:
        index = hlo.convert(index, wide)
        return hlo.multiply(index, hlo.full_like(index, step))

    rising = hlo.add(like(first.item(), scale(count)), scale(count))
    falling = hlo.subtract(like(last.item(), scale(back)), scale(back))
    rises = hlo.lt(count, hlo.full_like(count, max(steps // 2, 1)))
    return hlo.select(rises, rising, falling)


@lower(aten.linspace)
def _linspace(start: complex, end: complex, steps: int, aval: Aval) -> Value:
    inexact = aval.dtype.is_floating_point or aval.dtype.is_complex
    return cast(_spaced(start, end, steps, aval.dtype if inexact else torch.float64), aval.dtype)


@lower(aten.logspace)
def _logspace(start: complex, end: complex, steps: int, base: float, aval: Aval) -> Value:
    inexact = aval.dtype.is_floating_point or aval.dtype.is_complex
    exponent = _spaced(start, end, steps, aval.dtype if inexact else torch.float64)
    wide = torch.complex128 if aval.dtype.is_complex else torch.float64
    exponent = hlo.convert(exponent, wide)
    return cast(hlo.power(hlo.full_like(exponent, base), exponent), aval.dtype)


# Matrices.


def _band(shape: Sequence[int], direction: str, diagonal: int) -> Value:
    """Where column `direction` (GE, EQ, LE) row + diagonal, over the last two dimensions."""
    row, column = (hlo.iota(shape, len(shape) + d) for d in (-2, -1))
    return hlo.compare(direction, column, hlo.add(row, hlo.full_like(row, diagonal)))


def triangle(direction: str) -> Callable:
    """Keep the elements on one side of a diagonal; zero the others."""

    def lowered(self: Value, diagonal: int) -> Value:
        return hlo.select(_band(self.shape, direction, diagonal), self, hlo.zeros_like(self))

    return lowered


def _eye(aval: Aval, **_: object) -> Value:
    return hlo.convert(_band(aval.shape, "EQ", 0), aval.dtype)


lower(aten.eye, _eye)
lower(aten.eye.m, _eye)
lower(aten.tril, triangle("LE"))
lower(aten.triu, triangle("GE"))


def _indices(op: OpOverload) -> Callable[..., Tensor]:
    """torch's decomposition, but for the default dtype, which a schema holds as a number."""

    def indices(row: int, col: int, offset: int, *, dtype: object, **placement: object) -> Tensor:
        dtype = dtype if isinstance(dtype, torch.dtype) else torch.int64
        return decomposition_table[op](row, col, offset, dtype=dtype, device="meta")

    return indices


for overload in (aten.tril_indices.default, aten.triu_indices.default):
    decompose(overload, using=_indices(overload))
