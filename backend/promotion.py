"""torch's type promotion and broadcasting around strict hlo functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from . import hlo
from .dtypes import OPMATH
from .hlo import Value
from .registry import Aval

DEFAULT = KIND.DEFAULT
NO_OPMATH = KIND.NO_OPMATH
INT_TO_FLOAT = KIND.INT_TO_FLOAT
ALWAYS_BOOL = KIND.ALWAYS_BOOL
COMPLEX_TO_FLOAT = KIND.COMPLEX_TO_FLOAT
BOOL_TO_LONG = KIND.BOOL_TO_LONG


def _stand_in(value: Value) -> object:
    """What torch's promotion sees: a Python number, or a meta tensor of the same rank."""
    if value.weak:
        if value.dtype.is_complex:
            return 1j
        if value.dtype.is_floating_point:
            return 1.0
        return True if value.dtype is torch.bool else 1
    return torch.empty((1,) * value.ndim, dtype=value.dtype, device="meta")


def common_dtypes(
    operands: Sequence[Value], kind: KIND = DEFAULT
) -> tuple[torch.dtype, torch.dtype]:
    """(computation dtype, result dtype) of an elementwise op; see torch's promotion rules."""
    return elementwise_dtypes(*map(_stand_in, operands), type_promotion_kind=kind)


def scalar(value: object) -> Value:
    """A Python number as a weak 0-d value; hlo values pass through."""
    if isinstance(value, Value):
        return value
    if isinstance(value, bool):
        dtype = torch.bool
    elif isinstance(value, int):
        dtype = torch.int64
    else:
        dtype = torch.complex128 if isinstance(value, complex) else torch.float64
    constant = hlo.constant(value, dtype)  # type: ignore[arg-type]
    return Value(constant.name, (), dtype, weak=True)


def promoted(
    *operands: object, kind: KIND = DEFAULT, shape: Sequence[int] | None = None
) -> list[Value]:
    """Operands converted to the computation dtype and broadcast to one shape."""
    values = [scalar(operand) for operand in operands]
    dtype, _ = common_dtypes(values, kind)
    if shape is None:
        shape = hlo.broadcast_shapes(*(value.shape for value in values))
    return [hlo.broadcast(hlo.convert(value, dtype), shape) for value in values]


def pointwise(function: Callable[..., Value], kind: KIND = DEFAULT) -> Callable[..., Value]:
    """Lift an hlo function of equal operands to a lowering with torch's promotion.

    16-bit floats are computed in float32 and rounded once. Optional operands left out (None) are
    passed on as None.
    """

    def lowered(*, aval: Aval, **operands: object) -> Value:
        return apply(function, list(operands.values()), aval, kind)

    return lowered


def apply(
    function: Callable[..., Value],
    operands: Sequence[object],
    aval: Aval,
    kind: KIND = DEFAULT,
) -> Value:
    """`function` on promoted operands; the result is broadcast and converted to `aval`."""
    given = [scalar(x) for x in operands if x is not None]
    compute, result = common_dtypes(given, kind)
    shape = hlo.broadcast_shapes(*(value.shape for value in given))
    ready = iter(hlo.broadcast(hlo.convert(value, compute), shape) for value in given)
    value = function(*(None if x is None else next(ready) for x in operands))
    if kind is not ALWAYS_BOOL:
        value = hlo.convert(value, result)
    return hlo.broadcast(hlo.convert(value, aval.dtype), aval.shape)


comparison = partial(pointwise, kind=ALWAYS_BOOL)


def in_opmath(function: Callable[..., Value]) -> Callable[..., Value]:
    """Compute a function of 16-bit floats in float32 and round its result once."""

    def lowered(*operands: Value) -> Value:
        dtype = operands[0].dtype
        wide = OPMATH.get(dtype, dtype)
        return hlo.convert(function(*(hlo.convert(x, wide) for x in operands)), dtype)

    return lowered
