"""Arithmetic, comparison, bits and elementary functions: one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from .. import hlo
from ..hlo import Value
from ..promotion import (
    COMPLEX_TO_FLOAT,
    DEFAULT,
    INT_TO_FLOAT,
    KIND,
    NO_OPMATH,
    apply,
    comparison,
    pointwise,
    promoted,
    scalar,
)
from ..registry import Aval, decompose, lower
from . import elementary as e
from .elementary import like

aten = torch.ops.aten

floating = partial(pointwise, kind=INT_TO_FLOAT)


def scaled(function: Callable[..., Value], names: str, kind: KIND = DEFAULT) -> Callable:
    """`pointwise` for an op whose last arguments `names` only take the computation dtype."""

    def lowered(*, aval: Aval, **operands: object) -> Value:
        factors = [operands.pop(name) for name in names.split()]

        def body(*values: Value) -> Value:
            return function(*values, *(like(factor, values[0]) for factor in factors))

        return apply(body, list(operands.values()), aval, kind)

    return lowered


def each(packet: object, overloads: str, function: Callable) -> None:
    """One row an overload; whatever the schema calls a Scalar is an operand at run time."""
    for name in overloads.split():
        op = getattr(packet, name)
        numbers = [a.name for a in op._schema.arguments if "number" in str(a.type)]
        lower(op, function, dynamic=" ".join(numbers))


# Arithmetic.


def _add(x: Value, y: Value, alpha: Value) -> Value:
    return hlo.add(x, hlo.multiply(alpha, y))


def _subtract(x: Value, y: Value, alpha: Value) -> Value:
    return hlo.subtract(x, hlo.multiply(alpha, y))


def _not_of_bool(lowering: Callable[..., Value]) -> Callable[..., Value]:
    """Refuse bool operands; the recorder then raises with the CPU kernel's words."""

    def lowered(*, aval: Aval, **operands: object) -> Value:
        if any(isinstance(x, Value) and x.dtype is torch.bool for x in operands.values()):
            raise RuntimeError("this operator does not take a bool tensor")
        return lowering(aval=aval, **operands)

    return lowered


def _true_divide(self: Value, other: object, aval: Aval) -> Value:
    spread = scalar(other).numel < math.prod(aval.shape) or scalar(other).numel == 1
    quotient = e.divide if spread else hlo.divide
    return apply(quotient, [self, other], aval, INT_TO_FLOAT)


def _divide(self: Value, other: object, rounding_mode: str | None, aval: Aval) -> Value:
    if rounding_mode is None:
        return _true_divide(self, other, aval)
    rounded = {"trunc": e.trunc_divide, "floor": e.floor_divide}[rounding_mode]
    return apply(rounded, [self, other], aval)


def _addcmul(x: Value, y: Value, z: Value, value: Value) -> Value:
    return hlo.add(x, hlo.multiply(hlo.multiply(value, y), z))


def _addcdiv(x: Value, y: Value, z: Value, value: Value) -> Value:
    return hlo.add(x, hlo.divide(hlo.multiply(value, y), z))


each(aten.add, "Tensor Scalar", scaled(_add, "alpha"))
each(aten.sub, "Tensor Scalar", _not_of_bool(scaled(_subtract, "alpha")))
each(
    aten.rsub,
    "Tensor Scalar",
    _not_of_bool(scaled(lambda x, y, alpha: _subtract(y, x, alpha), "alpha")),
)
each(aten.mul, "Tensor Scalar", pointwise(hlo.multiply))
each(aten.div, "Tensor Scalar", _true_divide)
each(aten.div, "Tensor_mode Scalar_mode", _divide)
each(aten.floor_divide, "default Scalar", pointwise(e.floor_divide))
each(aten.fmod, "Tensor Scalar", pointwise(hlo.remainder))
each(aten.remainder, "Tensor Scalar Scalar_Tensor", pointwise(e.modulo))
each(aten.addcmul, "default", scaled(_addcmul, "value"))
each(aten.addcdiv, "default", scaled(_addcdiv, "value"))
each(aten.lerp, "Tensor", pointwise(e.lerp))
each(aten.lerp, "Scalar", scaled(e.lerp, "weight"))
each(aten.pow, "Tensor_Tensor Scalar", pointwise(e.power))
lower(aten.neg, _not_of_bool(pointwise(hlo.negate)))
lower(aten.abs, pointwise(e.absolute, COMPLEX_TO_FLOAT))
lower(aten.sign, pointwise(e.sign))
lower(aten.sgn, pointwise(e.sign))
lower(aten.gcd, pointwise(e.gcd))
lower(aten.lcm, pointwise(e.lcm))


# Powers whose exponent torch computes by simpler arithmetic; integers below 64 are exact.
_POWERS: dict[object, Callable[[Value], Value]] = {
    0: lambda x: hlo.full_like(x, 1),
    1: lambda x: x,
    2: hlo.square,
    3: lambda x: hlo.multiply(hlo.square(x), x),
    0.5: hlo.sqrt,
    -0.5: hlo.rsqrt,
    -1: hlo.reciprocal,
    -2: lambda x: hlo.reciprocal(hlo.square(x)),
}


@lower(aten.pow.Tensor_Scalar)
def _power(self: Value, exponent: complex, aval: Aval) -> Value:
    integral = not (aval.dtype.is_floating_point or aval.dtype.is_complex)
    if isinstance(exponent, int) and exponent < 0 and integral:
        raise RuntimeError("Integers to negative integer powers are not allowed.")

    def body(x: Value, y: Value) -> Value:
        if exponent in _POWERS:
            return _POWERS[exponent](x)
        short = not e.is_float(x) and 0 <= exponent.real < 64
        return hlo.power(x, y) if short else e.power(x, y)

    return apply(body, [self, exponent], aval)


# Exponentials, logarithms, trigonometry and the functions of statistics.

for op, function in {
    aten.reciprocal: hlo.reciprocal,
    aten.sqrt: hlo.sqrt,
    aten.rsqrt: hlo.rsqrt,
    aten.exp: hlo.exponential,
    aten.exp2: e.exp2,
    aten.expm1: hlo.exponential_minus_one,
    aten.log: hlo.log,
    aten.log2: e.log2,
    aten.log10: e.log10,
    aten.log1p: hlo.log_plus_one,
    aten.sin: e.sin,
    aten.cos: e.cos,
    aten.tan: hlo.tan,
    aten.asin: hlo.asin,
    aten.acos: hlo.acos,
    aten.atan: hlo.atan,
    aten.sinh: e.sinh,
    aten.cosh: e.cosh,
    aten.tanh: e.tanh,
    aten.asinh: hlo.asinh,
    aten.acosh: hlo.acosh,
    aten.atanh: hlo.atanh,
    aten.sigmoid: e.sigmoid,
    aten.erf: hlo.erf,
    aten.erfc: hlo.erfc,
    aten.erfinv: hlo.erf_inv,
    aten.lgamma: hlo.lgamma,
    aten.digamma: e.digamma,
}.items():
    lower(op, floating(function))

lower(aten.atan2, floating(hlo.atan2))
lower(aten.hypot, pointwise(e.hypot))
lower(aten.logaddexp, pointwise(e.logaddexp))
lower(aten.logaddexp2, pointwise(e.logaddexp2))
each(aten.xlogy, "Tensor Scalar_Self Scalar_Other", floating(e.times_log(hlo.log)))
each(
    aten.special_xlog1py,
    "default self_scalar other_scalar",
    floating(e.times_log(hlo.log_plus_one)),
)
each(aten.special_zeta, "default self_scalar other_scalar", floating(e.zeta))
for op in (aten.polygamma, aten.polygamma_):
    lower(op, lambda n, self, aval: floating(e.polygamma(n))(self=self, aval=aval))
decompose(aten.linalg_cross)
decompose(aten.sinc, aten.logit, aten.special_entr, aten.deg2rad, aten.rad2deg, aten.ldexp.Tensor)

# Rounding and the parts of a float.

lower(aten.floor, pointwise(e.whole(hlo.floor)))
lower(aten.ceil, pointwise(e.whole(hlo.ceil)))
lower(aten.trunc, pointwise(e.whole(hlo.trunc)))
lower(aten.round, pointwise(e.whole(hlo.round_nearest_even)))
lower(aten.frac, pointwise(e.frac))
each(aten.copysign, "Tensor Scalar", floating(e.copysign))
lower(aten.frexp.Tensor, lambda self: e.frexp(hlo.opmath(self)))
lower(aten.nextafter, pointwise(hlo.next_after, NO_OPMATH))


@lower(aten.round.decimals)
def _round(self: Value, decimals: int, aval: Aval) -> Value:
    return apply(lambda x: e.round_decimals(x, decimals), [self], aval)


@lower(aten.nan_to_num)
def _nan_to_num(
    self: Value, nan: float | None, posinf: float | None, neginf: float | None
) -> Value:
    return e.nan_to_num(self, nan, posinf, neginf)


# Comparison and classification.

for packet, direction in {
    aten.eq: "EQ",
    aten.ne: "NE",
    aten.lt: "LT",
    aten.le: "LE",
    aten.gt: "GT",
    aten.ge: "GE",
}.items():
    each(packet, "Tensor Scalar", comparison(partial(hlo.compare, direction)))

lower(aten.isnan, comparison(hlo.is_nan))
lower(aten.isinf, comparison(e.is_infinite))
lower(aten.isposinf, comparison(e.equals(math.inf)))
lower(aten.isneginf, comparison(e.equals(-math.inf)))
lower(aten.signbit, comparison(e.signbit))

# Choice.

lower(aten.maximum, pointwise(hlo.maximum))
lower(aten.minimum, pointwise(hlo.minimum))
lower(aten.fmax, pointwise(e.maximum_number))
lower(aten.fmin, pointwise(e.minimum_number))
each(aten.clamp, "default Tensor", pointwise(e.clamp))
each(aten.clamp_min, "default Tensor", pointwise(hlo.maximum))
each(aten.clamp_max, "default Tensor", pointwise(hlo.minimum))
decompose(aten.heaviside)


@lower(aten.where.self)
def _where(condition: Value, self: Value, other: Value, aval: Aval) -> Value:
    predicate = hlo.broadcast(hlo.convert(condition, torch.bool), aval.shape)
    on_true, on_false = promoted(self, other, kind=NO_OPMATH, shape=aval.shape)
    return hlo.select(predicate, on_true, on_false)


def _masked_fill(self: Value, mask: Value, value: object, aval: Aval) -> Value:
    given = (mask, hlo.convert(scalar(value), aval.dtype), self)
    return hlo.select(*(hlo.broadcast(x, aval.shape) for x in given))


each(aten.masked_fill, "Scalar Tensor", _masked_fill)


# Logic and bits.


def logical(function: Callable[..., Value]) -> Callable:
    """Each operand counts as true where it is not zero."""
    return comparison(lambda *xs: function(*(hlo.convert(x, torch.bool) for x in xs)))


lower(aten.logical_and, logical(hlo.and_))
lower(aten.logical_or, logical(hlo.or_))
lower(aten.logical_xor, logical(hlo.xor))
lower(aten.logical_not, logical(hlo.not_))
lower(aten.bitwise_not, pointwise(hlo.not_))
for packet, operation in {
    aten.bitwise_and: hlo.and_,
    aten.bitwise_or: hlo.or_,
    aten.bitwise_xor: hlo.xor,
}.items():
    each(packet, "Tensor Scalar Scalar_Tensor", pointwise(operation))
for packet, operation in {
    aten.bitwise_left_shift: hlo.shift_left,
    aten.bitwise_right_shift: e.shift_right,
}.items():
    each(packet, "Tensor Tensor_Scalar Scalar_Tensor", pointwise(operation))
each(aten.__lshift__, "Tensor Scalar", pointwise(hlo.shift_left))
each(aten.__ilshift__, "Tensor Scalar", pointwise(hlo.shift_left))
each(aten.__rshift__, "Tensor Scalar", pointwise(e.shift_right))
each(aten.__irshift__, "Tensor Scalar", pointwise(e.shift_right))

# Complex numbers.


def composed_of_parts(function: Callable[..., Value]) -> Callable:
    """Two real operands of one dtype make a complex result."""

    def lowered(*, aval: Aval, **parts: Value) -> Value:
        if len({part.dtype for part in parts.values()}) != 1:
            raise TypeError(f"{' and '.join(parts)} must have one dtype")
        return function(*promoted(*parts.values(), shape=aval.shape))

    return lowered


lower(aten.complex, composed_of_parts(hlo.complex_))
lower(aten.polar, composed_of_parts(e.polar))
lower(aten.angle, floating(e.angle))
lower(aten._conj_physical, pointwise(e.conjugate))
lower(aten.conj_physical_, pointwise(e.conjugate))
