"""Elementwise operations. Operands have equal shape and dtype: nothing broadcasts or promotes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..dtypes import OPMATH, complex_of, is_unsigned, real_of
from .core import Value, constant, emit, full_like, zeros_like


def _same(op: str, x: Value, y: Value) -> None:
    if x.shape != y.shape or x.dtype != y.dtype:
        raise TypeError(f"hlo.{op}: operands differ: {x.type} and {y.type}")


def _ordered(op: str, x: Value) -> None:
    """XLA's simplifier aborts the process where complex constants are put in order."""
    if x.dtype.is_complex:
        raise NotImplementedError(f"{op}: complex numbers have no order ({x.dtype})")


def _unary(op: str, dialect: str = "stablehlo") -> Callable[[Value], Value]:
    def unary(x: Value) -> Value:
        if dialect == "chlo":
            return emit(f"chlo.{op} {x.name} : {x.type} -> {x.type}", x.shape, x.dtype)
        return emit(f"stablehlo.{op} {x.name} : {x.type}", x.shape, x.dtype)

    unary.__name__ = op
    return unary


def _binary(op: str) -> Callable[[Value, Value], Value]:
    def binary(x: Value, y: Value) -> Value:
        _same(op, x, y)
        if op in ("maximum", "minimum"):
            _ordered(op, x)
        return emit(f"stablehlo.{op} {x.name}, {y.name} : {x.type}", x.shape, x.dtype)

    binary.__name__ = op
    return binary


negate = _unary("negate")
sign = _unary("sign")
exponential = _unary("exponential")
exponential_minus_one = _unary("exponential_minus_one")
log = _unary("log")
log_plus_one = _unary("log_plus_one")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
cbrt = _unary("cbrt")
sine = _unary("sine")
cosine = _unary("cosine")
tanh = _unary("tanh")
logistic = _unary("logistic")
ceil = _unary("ceil")
floor = _unary("floor")
round_nearest_even = _unary("round_nearest_even")
round_nearest_afz = _unary("round_nearest_afz")
not_ = _unary("not")
popcnt = _unary("popcnt")
count_leading_zeros = _unary("count_leading_zeros")
erf = _unary("erf", "chlo")
erfc = _unary("erfc", "chlo")
erf_inv = _unary("erf_inv", "chlo")
lgamma = _unary("lgamma", "chlo")
digamma = _unary("digamma", "chlo")
tan = _unary("tan", "chlo")
sinh = _unary("sinh", "chlo")
cosh = _unary("cosh", "chlo")
asin = _unary("asin", "chlo")
acos = _unary("acos", "chlo")
atan = _unary("atan", "chlo")
asinh = _unary("asinh", "chlo")
acosh = _unary("acosh", "chlo")
atanh = _unary("atanh", "chlo")
bessel_i1e = _unary("bessel_i1e", "chlo")

add = _binary("add")
subtract = _binary("subtract")
multiply = _binary("multiply")
divide = _binary("divide")
remainder = _binary("remainder")
maximum = _binary("maximum")
minimum = _binary("minimum")
power = _binary("power")
atan2 = _binary("atan2")
and_ = _binary("and")
or_ = _binary("or")
xor = _binary("xor")
shift_left = _binary("shift_left")
shift_right_arithmetic = _binary("shift_right_arithmetic")
shift_right_logical = _binary("shift_right_logical")


def abs_(x: Value) -> Value:
    """|x|; of a complex operand, its modulus as a real value."""
    dtype = real_of(x.dtype)
    out = Value("", x.shape, dtype)
    return emit(f"stablehlo.abs {x.name} : ({x.type}) -> {out.type}", x.shape, dtype)


def next_after(x: Value, y: Value) -> Value:
    _same("next_after", x, y)
    text = f"chlo.broadcast_next_after {x.name}, {y.name} : ({x.type}, {y.type}) -> {x.type}"
    return emit(text, x.shape, x.dtype)


def zeta(x: Value, q: Value) -> Value:
    _same("zeta", x, q)
    return emit(f"chlo.zeta {x.name}, {q.name} : {x.type}, {q.type} -> {x.type}", x.shape, x.dtype)


def polygamma(n: Value, x: Value) -> Value:
    _same("polygamma", n, x)
    text = f"chlo.polygamma {n.name}, {x.name} : {n.type}, {x.type} -> {x.type}"
    return emit(text, x.shape, x.dtype)


def is_finite(x: Value) -> Value:
    out = Value("", x.shape, torch.bool)
    return emit(f"stablehlo.is_finite {x.name} : ({x.type}) -> {out.type}", x.shape, torch.bool)


def real(x: Value) -> Value:
    if not x.dtype.is_complex:
        return x
    out = Value("", x.shape, real_of(x.dtype))
    return emit(f"stablehlo.real {x.name} : ({x.type}) -> {out.type}", x.shape, out.dtype)


def imag(x: Value) -> Value:
    if not x.dtype.is_complex:
        return zeros_like(x)
    out = Value("", x.shape, real_of(x.dtype))
    return emit(f"stablehlo.imag {x.name} : ({x.type}) -> {out.type}", x.shape, out.dtype)


def complex_(re: Value, im: Value) -> Value:
    _same("complex", re, im)
    out = Value("", re.shape, complex_of(re.dtype))
    text = f"stablehlo.complex {re.name}, {im.name} : ({re.type}, {im.type}) -> {out.type}"
    return emit(text, re.shape, out.dtype)


def compare(direction: str, x: Value, y: Value, total_order: bool = False) -> Value:
    """`direction` is one of EQ NE LT LE GT GE; total order puts -NaN < -0 < +0 < NaN."""
    _same(f"compare {direction}", x, y)
    if direction not in ("EQ", "NE"):
        _ordered(f"compare {direction}", x)
    kind = ", TOTALORDER" if total_order else ""
    out = Value("", x.shape, torch.bool)
    text = f"stablehlo.compare {direction}, {x.name}, {y.name}{kind} : ({x.type}, {y.type})"
    return emit(f"{text} -> {out.type}", x.shape, torch.bool)


def eq(x: Value, y: Value) -> Value:
    return compare("EQ", x, y)


def ne(x: Value, y: Value) -> Value:
    return compare("NE", x, y)


def lt(x: Value, y: Value) -> Value:
    return compare("LT", x, y)


def le(x: Value, y: Value) -> Value:
    return compare("LE", x, y)


def gt(x: Value, y: Value) -> Value:
    return compare("GT", x, y)


def ge(x: Value, y: Value) -> Value:
    return compare("GE", x, y)


def is_nan(x: Value) -> Value:
    return ne(x, x) if not is_unsigned(x.dtype) else constant(False, torch.bool, x.shape)


def select(predicate: Value, on_true: Value, on_false: Value) -> Value:
    """Elementwise choice; the predicate has the operands' shape, or is a scalar."""
    _same("select", on_true, on_false)
    text = f"stablehlo.select {predicate.name}, {on_true.name}, {on_false.name} : "
    return emit(text + f"{predicate.type}, {on_true.type}", on_true.shape, on_true.dtype)


def clamp(low: Value, x: Value, high: Value) -> Value:
    """min(max(x, low), high); low and high have x's shape or are scalars."""
    _ordered("clamp", x)
    text = f"stablehlo.clamp {low.name}, {x.name}, {high.name} : "
    return emit(text + f"({low.type}, {x.type}, {high.type}) -> {x.type}", x.shape, x.dtype)


def convert(x: Value, dtype: torch.dtype) -> Value:
    """Convert as C does: floats to integers truncate, anything to bool is `x != 0`."""
    if x.dtype == dtype:
        return x
    if dtype is torch.bool:
        return ne(x, zeros_like(x))
    if x.dtype is torch.bool and (dtype.is_floating_point or dtype.is_complex):
        # XLA makes a select of multiply(convert(mask), y), and 0 * NaN and 0 * inf become 0.
        return select(x, constant(1, dtype, x.shape), constant(0, dtype, x.shape))
    if x.dtype.is_complex and not dtype.is_complex:
        return convert(real(x), dtype)
    out = Value("", x.shape, dtype)
    return emit(f"stablehlo.convert {x.name} : ({x.type}) -> {out.type}", x.shape, dtype)


def opmath(x: Value) -> Value:
    """x in the dtype that torch computes in: float32 for the 16-bit floats, else unchanged."""
    return convert(x, OPMATH.get(x.dtype, x.dtype))


def square(x: Value) -> Value:
    return multiply(x, x)


def reciprocal(x: Value) -> Value:
    return divide(full_like(x, 1), x)


def trunc(x: Value) -> Value:
    """Towards zero, keeping the sign of zero."""
    return select(lt(x, zeros_like(x)), ceil(x), floor(x))


def bitcast_convert(x: Value, dtype: torch.dtype) -> Value:
    """Reinterpret the bits; a narrower dtype adds a minor dimension, a wider one removes it."""
    if x.dtype == dtype:
        return x
    wide, narrow = x.dtype.itemsize, dtype.itemsize
    shape = x.shape
    if wide > narrow:
        shape = (*x.shape, wide // narrow)
    elif wide < narrow:
        shape = x.shape[:-1]
    out = Value("", shape, dtype)
    return emit(f"stablehlo.bitcast_convert {x.name} : ({x.type}) -> {out.type}", shape, dtype)
