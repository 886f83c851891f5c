"""torch's primitives, which its reference decompositions are written in.

Most have the meaning and the arguments of an ATen op and share its row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import hlo
from ..hlo import Value
from ..promotion import pointwise, scalar
from ..registry import TABLE, Aval, decompose, lower
from . import creation as creation
from . import pointwise as arithmetic  # noqa: F401  its rows are shared
from .creation import cast, filled

aten, prims = torch.ops.aten, torch.ops.prims


def shared(overload: str, names: str) -> None:
    """Give each primitive the function of the ATen op of the same name."""
    for name in names.split():
        lower(getattr(prims, name), TABLE[getattr(getattr(aten, name), overload)].function)


shared(
    "default",
    "abs acos acosh asin asinh atan atan2 atanh bitwise_not ceil cos cosh digamma erf erfc exp "
    "exp2 expm1 floor fmax fmin gcd hypot lgamma log log10 log1p log2 maximum minimum neg "
    "nextafter reciprocal round rsqrt sign signbit sin sinh sqrt tan tanh trunc",
)
shared("Tensor", "bitwise_and bitwise_or bitwise_xor eq fmod ge gt le lt mul ne remainder")
shared("Tensor_Tensor", "pow")
for op, twin in {
    prims.conj_physical: aten._conj_physical.default,
    prims.erf_inv: aten.erfinv.default,
    prims.shift_left: aten.bitwise_left_shift.Tensor,
    prims.shift_right_arithmetic: aten.bitwise_right_shift.Tensor,
    prims.zeta: aten.special_zeta.default,
}.items():
    lower(op, TABLE[twin].function)

# Operands have one dtype; integers are divided towards zero.
lower(prims.add, pointwise(hlo.add))
lower(prims.sub, pointwise(hlo.subtract))
lower(prims.div, pointwise(hlo.divide))


@lower(prims.where)
def _where(pred: Value, a: object, b: object, aval: Aval) -> Value:
    on_true, on_false = (hlo.convert(scalar(x), aval.dtype) for x in (a, b))
    operands = (hlo.broadcast(x, aval.shape) for x in (pred, on_true, on_false))
    return hlo.select(*operands)


lower(prims.convert_element_type, lambda a, aval: cast(a, aval.dtype))
lower(prims.copy_to, lambda a, b, aval: hlo.broadcast(cast(b, aval.dtype), aval.shape))
lower(prims.device_put, lambda a: a)
lower(prims.clone, lambda self: self)
lower(prims.cat, lambda tensors, dim: hlo.concatenate(tensors, dim))
lower(prims.rev, lambda a, dims: hlo.reverse(a, dims))
lower(prims.reshape, lambda a, shape: hlo.reshape(a, shape))
lower(prims.fill, filled("value"))
lower(prims.full, filled("fill_value"))
lower(prims.full_like, filled("fill_value"))
lower(prims.scalar_tensor, filled("s"))


@lower(prims.iota)
def _iota(length: int, start: int, step: int, requires_grad: bool, aval: Aval) -> Value:
    index = hlo.iota(aval.shape)
    index = hlo.multiply(index, hlo.full_like(index, step))
    return hlo.convert(hlo.add(index, hlo.full_like(index, start)), aval.dtype)


# Reductions: None or no dims means all.


def reduction(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduced(
        inp: Tensor, dims: Sequence[int] | None, *, output_dtype: torch.dtype | None = None
    ) -> Tensor:
        return op(inp, list(range(inp.ndim) if dims is None else dims)).to(
            output_dtype or inp.dtype
        )

    return reduced


decompose(prims.sum, using=reduction(aten.sum.dim_IntList))
decompose(prims.amax, using=reduction(aten.amax))
decompose(prims.amin, using=reduction(aten.amin))
