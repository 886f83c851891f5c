"""Formulas of the pointwise table: torch's functions of values that agree in shape and dtype."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .. import hlo
from ..dtypes import is_integer, is_unsigned
from ..hlo import Value
from ..promotion import scalar

# Below this, zeta is not continued: each unit costs a term.
_ZETA_REACH = 1000

Unary = Callable[[Value], Value]
Binary = Callable[[Value, Value], Value]


def like(value: object, x: Value) -> Value:
    """A Python number or 0-d value in the dtype and shape of x."""
    return hlo.broadcast(hlo.convert(scalar(value), x.dtype), x.shape)


def is_float(x: Value) -> bool:
    return x.dtype.is_floating_point


def opaque(x: Value) -> Value:
    """x, hidden from XLA's simplifier."""
    return hlo.emit_generic("stablehlo.optimization_barrier", [x], [(x.shape, x.dtype)])[0]


def signbit(x: Value) -> Value:
    """True where the sign is negative, for -0.0 and negative NaN too."""
    if is_float(x):
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
        x = hlo.bitcast_convert(x, bits)
    if is_unsigned(x.dtype):
        return hlo.constant(False, torch.bool, x.shape)
    return hlo.lt(x, hlo.zeros_like(x))


def copysign(x: Value, sign: Value) -> Value:
    return hlo.select(hlo.eq(signbit(x), signbit(sign)), x, hlo.negate(x))


def absolute(x: Value) -> Value:
    return x if is_unsigned(x.dtype) else hlo.abs_(x)


def sign(x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN. Of a complex operand, the point of the unit circle towards it."""
    if x.dtype.is_complex:
        return hlo.sign(x)
    if x.dtype is torch.bool:
        return x
    zero = hlo.zeros_like(x)
    return hlo.subtract(*(hlo.convert(f(x, zero), x.dtype) for f in (hlo.gt, hlo.lt)))


def whole(function: Unary) -> Unary:
    """A rounding function, which leaves integers as they are."""
    return lambda x: function(x) if is_float(x) else x


def round_decimals(x: Value, decimals: int) -> Value:
    """Round half to even at a decimal place."""
    if not is_float(x) or decimals == 0:
        return whole(hlo.round_nearest_even)(x)
    ten = hlo.full_like(x, 10.0 ** abs(decimals))
    scale, back = (hlo.multiply, divide) if decimals > 0 else (divide, hlo.multiply)
    return back(hlo.round_nearest_even(scale(x, ten)), ten)


def frac(x: Value) -> Value:
    return hlo.subtract(x, hlo.trunc(x))


def frexp(x: Value) -> tuple[Value, Value]:
    """(m, e) with x = m * 2**e and 0.5 <= |m| < 1, from the bits; e is 0 of zero and infinity."""
    word, digits, bias = (
        (torch.int64, 52, 1022) if x.dtype is torch.float64 else (torch.int32, 23, 126)
    )
    bits = hlo.bitcast_convert(x, word)
    field = (2 * bias + 3) << digits
    raw = hlo.and_(bits, hlo.full_like(bits, field))
    rest = hlo.and_(bits, hlo.full_like(bits, ~field))
    mantissa = hlo.bitcast_convert(hlo.or_(rest, hlo.full_like(bits, bias << digits)), x.dtype)
    exponent = hlo.shift_right_logical(raw, hlo.full_like(bits, digits))
    exponent = hlo.subtract(exponent, hlo.full_like(bits, bias))
    plain = hlo.and_(hlo.ne(x, hlo.zeros_like(x)), hlo.is_finite(x))
    exponent = hlo.select(plain, exponent, hlo.zeros_like(bits))
    return hlo.select(plain, mantissa, x), hlo.convert(exponent, torch.int32)


# Division. Integer division by zero, an error on the host, gives what XLA gives.


def _opposite(remainder: Value, divisor: Value) -> Value:
    """Where a remainder of truncated division has the sign that floor division would not give."""
    zero = hlo.zeros_like(divisor)
    differs = hlo.ne(hlo.lt(remainder, zero), hlo.lt(divisor, zero))
    return hlo.and_(hlo.ne(remainder, zero), differs)


def divide(x: Value, y: Value) -> Value:
    """x / y rounded once, also by a scalar: XLA would multiply by its rounded reciprocal."""
    return hlo.divide(x, opaque(y))


def trunc_divide(x: Value, y: Value) -> Value:
    quotient = divide(x, y)
    return hlo.trunc(quotient) if is_float(x) else quotient


def floor_divide(x: Value, y: Value) -> Value:
    """Python's floor division: exact for floats, where floor(x / y) would round up to a whole."""
    remainder = hlo.remainder(x, y)
    if not is_float(x):
        below = hlo.convert(_opposite(remainder, y), x.dtype)
        return hlo.subtract(hlo.divide(x, y), below)
    ratio, one = divide(x, y), hlo.full_like(x, 1)
    quotient = divide(hlo.subtract(x, remainder), y)
    quotient = hlo.select(_opposite(remainder, y), hlo.subtract(quotient, one), quotient)
    floor = hlo.floor(quotient)
    short = hlo.gt(hlo.subtract(quotient, floor), hlo.full_like(x, 0.5))
    floor = hlo.select(short, hlo.add(floor, one), floor)
    zero = hlo.zeros_like(x)
    floor = hlo.select(hlo.eq(quotient, zero), copysign(zero, ratio), floor)
    return hlo.select(hlo.eq(y, zero), ratio, floor)


def modulo(x: Value, y: Value) -> Value:
    """The remainder of floor division: it has the sign of y."""
    remainder = hlo.remainder(x, y)
    return hlo.select(_opposite(remainder, y), hlo.add(remainder, y), remainder)


def gcd(x: Value, y: Value) -> Value:
    def nonzero(x: Value, y: Value) -> Value:
        return hlo.reduce_or(hlo.ne(y, hlo.zeros_like(y)), range(y.ndim))

    def step(x: Value, y: Value) -> tuple[Value, Value]:
        done = hlo.eq(y, hlo.zeros_like(y))
        rest = hlo.remainder(x, hlo.select(done, hlo.full_like(y, 1), y))
        return hlo.select(done, x, y), hlo.select(done, y, rest)

    return hlo.while_(nonzero, step, [absolute(x), absolute(y)])[0]


def lcm(x: Value, y: Value) -> Value:
    """In 32 bits at least, as C++ multiplies: the absolute value is taken before wrapping."""
    wide = torch.int32 if x.dtype.itemsize < 4 else x.dtype
    divisor, one = gcd(x, y), hlo.full_like(x, 1)
    part = hlo.divide(x, hlo.select(hlo.eq(divisor, hlo.zeros_like(x)), one, divisor))
    product = hlo.multiply(hlo.convert(part, wide), hlo.convert(y, wide))
    return hlo.convert(absolute(product), x.dtype)


def shift_right(x: Value, y: Value) -> Value:
    shift = hlo.shift_right_logical if is_unsigned(x.dtype) else hlo.shift_right_arithmetic
    return shift(x, y)


# Powers, exponentials and logarithms.


def power(x: Value, y: Value) -> Value:
    """x ** y. Integers wrap around; a negative power of one is 0 unless |x| is 1."""
    if x.dtype is torch.bool:
        return hlo.or_(x, hlo.not_(y))
    return _integer_power(x, y) if is_integer(x.dtype) else hlo.power(x, y)


def _integer_power(x: Value, y: Value) -> Value:
    one, zero = hlo.full_like(x, 1), hlo.zeros_like(x)
    odd = hlo.ne(hlo.and_(y, one), zero)

    def more(result: Value, base: Value, left: Value) -> Value:
        return hlo.reduce_or(hlo.ne(left, zero), range(x.ndim))

    def square(result: Value, base: Value, left: Value) -> tuple[Value, ...]:
        product = hlo.multiply(result, base)
        result = hlo.select(hlo.ne(hlo.and_(left, one), zero), product, result)
        return result, hlo.multiply(base, base), hlo.shift_right_logical(left, one)

    result = hlo.while_(more, square, [one, x, y])[0]
    if is_unsigned(x.dtype):
        return result
    minus = hlo.negate(one)
    inverse = hlo.select(hlo.eq(x, minus), hlo.select(odd, minus, one), zero)
    inverse = hlo.select(hlo.eq(x, one), one, inverse)
    return hlo.select(hlo.lt(y, zero), inverse, result)


def exp2(x: Value) -> Value:
    if x.dtype.is_complex:
        return hlo.exponential(hlo.multiply(x, hlo.full_like(x, math.log(2))))
    return hlo.power(hlo.full_like(x, 2), x)


def log2(x: Value) -> Value:
    """Exact for powers of two: the exponent is taken from the bits."""
    scale = hlo.full_like(x, 1 / math.log(2))
    if x.dtype.is_complex:
        return hlo.multiply(hlo.log(x), scale)
    mantissa, exponent = frexp(x)
    low = hlo.lt(mantissa, hlo.full_like(x, math.sqrt(0.5)))
    centred = hlo.select(low, hlo.add(mantissa, mantissa), mantissa)
    whole = hlo.subtract(exponent, hlo.convert(low, exponent.dtype))
    return hlo.add(hlo.convert(whole, x.dtype), hlo.multiply(hlo.log(centred), scale))


def log10(x: Value) -> Value:
    """Exact for powers of ten: the nearest whole number is tried."""
    value = hlo.multiply(hlo.log(x), hlo.full_like(x, 1 / math.log(10)))
    if x.dtype.is_complex:
        return value
    near = hlo.round_nearest_even(value)
    return hlo.select(hlo.eq(hlo.power(hlo.full_like(x, 10), near), x), near, value)


def logaddexp(x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)), from the larger real part so as not to overflow."""
    swap = hlo.lt(hlo.real(x), hlo.real(y))
    high, low = hlo.select(swap, y, x), hlo.select(swap, x, y)
    excess = hlo.log_plus_one(hlo.exponential(hlo.subtract(low, high)))
    same = hlo.and_(hlo.eq(x, y), is_infinite(x))
    return hlo.select(same, x, hlo.add(high, excess))


def logaddexp2(x: Value, y: Value) -> Value:
    ln2 = hlo.full_like(x, math.log(2))
    return hlo.divide(logaddexp(hlo.multiply(x, ln2), hlo.multiply(y, ln2)), ln2)


def times_log(log: Unary) -> Binary:
    """x * log(y), zero where x is zero, NaN where y is NaN."""

    def function(x: Value, y: Value) -> Value:
        zero = hlo.zeros_like(x)
        product = hlo.select(hlo.eq(x, zero), zero, hlo.multiply(x, log(y)))
        return hlo.select(hlo.is_nan(y), y, product)

    return function


# Trigonometric and hyperbolic functions.


def _product(growth: Value, wave: Value) -> Value:
    """growth * wave, where a wave that is exactly zero wins over an infinity."""
    zero = hlo.zeros_like(wave)
    return hlo.select(hlo.eq(wave, zero), zero, hlo.multiply(growth, wave))


def sin(x: Value) -> Value:
    if not x.dtype.is_complex:
        return hlo.sine(x)
    a, b = hlo.real(x), hlo.imag(x)
    return hlo.complex_(_product(hlo.cosh(b), hlo.sine(a)), _product(hlo.sinh(b), hlo.cosine(a)))


def cos(x: Value) -> Value:
    if not x.dtype.is_complex:
        return hlo.cosine(x)
    a, b = hlo.real(x), hlo.imag(x)
    imaginary = hlo.negate(_product(hlo.sinh(b), hlo.sine(a)))
    return hlo.complex_(_product(hlo.cosh(b), hlo.cosine(a)), imaginary)


def sinh(x: Value) -> Value:
    if not x.dtype.is_complex:
        return hlo.sinh(x)
    a, b = hlo.real(x), hlo.imag(x)
    return hlo.complex_(_product(hlo.sinh(a), hlo.cosine(b)), _product(hlo.cosh(a), hlo.sine(b)))


def cosh(x: Value) -> Value:
    if not x.dtype.is_complex:
        return hlo.cosh(x)
    a, b = hlo.real(x), hlo.imag(x)
    return hlo.complex_(_product(hlo.cosh(a), hlo.cosine(b)), _product(hlo.sinh(a), hlo.sine(b)))


def tanh(x: Value) -> Value:
    """Exactly 1 where float32 has nothing closer; XLA may stop 3 ulp short, which derivatives
    such as 1 - tanh(x) ** 2 turn into a slope."""
    if x.dtype is not torch.float32:
        return hlo.tanh(x)
    saturated = hlo.gt(hlo.abs_(x), hlo.full_like(x, 9.02))
    return hlo.select(saturated, hlo.sign(x), hlo.tanh(x))


def hypot(x: Value, y: Value) -> Value:
    """The modulus of x + iy; infinite if either is, whatever the other."""
    infinity = hlo.full_like(x, math.inf)
    modulus = hlo.abs_(hlo.complex_(x, y))
    return hlo.select(hlo.or_(is_infinite(x), is_infinite(y)), infinity, modulus)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)); the complex one must not divide infinities."""
    if not x.dtype.is_complex:
        return hlo.logistic(x)
    left = hlo.lt(hlo.real(x), hlo.zeros_like(hlo.real(x)))
    decay = hlo.exponential(hlo.select(left, x, hlo.negate(x)))
    one = hlo.full_like(x, 1)
    return hlo.divide(hlo.select(left, decay, one), hlo.add(one, decay))


def digamma(x: Value) -> Value:
    """chlo's, with the pole at zero taken from the side of its sign."""
    pole = hlo.divide(hlo.full_like(x, -1), x)
    return hlo.select(hlo.eq(x, hlo.zeros_like(x)), pole, hlo.digamma(x))


def polygamma(order: int) -> Unary:
    """The derivatives of digamma: n! * zeta(n + 1, x), alternating in sign."""
    if order < 2:
        return trigamma if order else digamma
    factor = math.factorial(order) * (1 if order % 2 else -1)

    def function(x: Value) -> Value:
        return hlo.multiply(hlo.full_like(x, factor), zeta(hlo.full_like(x, order + 1), x))

    return function


def zeta(x: Value, q: Value) -> Value:
    """The sum of (q + k) ** -x. chlo's series needs q > 0; the terms before are added here."""
    one = hlo.full_like(q, 1)

    def more(total: Value, q: Value) -> Value:
        below = hlo.and_(hlo.lt(q, one), hlo.gt(q, hlo.full_like(q, -_ZETA_REACH)))
        return hlo.reduce_or(below, range(q.ndim))

    def term(total: Value, q: Value) -> tuple[Value, Value]:
        below = hlo.lt(q, one)
        added = hlo.add(total, hlo.power(q, hlo.negate(x)))
        return hlo.select(below, added, total), hlo.select(below, hlo.add(q, one), q)

    total, q = hlo.while_(more, term, [hlo.zeros_like(q), q])
    return hlo.add(total, hlo.zeta(x, q))


def trigamma(x: Value) -> Value:
    """By reflection to x > 1/2, recurrence to x > 6, and the asymptotic series there."""
    one = hlo.full_like(x, 1)
    left = hlo.lt(x, hlo.full_like(x, 0.5))
    sine = hlo.sine(hlo.multiply(x, like(math.pi, x)))
    mirrored = hlo.divide(hlo.full_like(x, -(math.pi**2)), hlo.square(sine))
    total = hlo.select(left, mirrored, hlo.zeros_like(x))
    x = hlo.select(left, hlo.subtract(one, x), x)
    for _ in range(6):
        total, x = hlo.add(total, hlo.reciprocal(hlo.square(x))), hlo.add(x, one)
    inverse = hlo.reciprocal(x)
    series = hlo.zeros_like(x)
    for coefficient in (-1 / 30, 1 / 42, -1 / 30, 1 / 6):
        series = hlo.multiply(series, hlo.square(inverse))
        series = hlo.add(series, hlo.full_like(x, coefficient))
    # The terms 1/x + 1/(2 x^2) + series / x^3.
    series = hlo.add(hlo.multiply(series, inverse), hlo.full_like(x, 0.5))
    series = hlo.add(hlo.multiply(series, inverse), one)
    total = hlo.add(total, hlo.multiply(series, inverse))
    return hlo.select(left, hlo.negate(total), total)


# Complex numbers.


def polar(modulus: Value, angle: Value) -> Value:
    wave = hlo.cosine(angle), hlo.sine(angle)
    return hlo.complex_(*(hlo.multiply(modulus, part) for part in wave))


def angle(x: Value) -> Value:
    """The argument; of a real operand, pi where it is negative, and NaN stays."""
    if x.dtype.is_complex:
        return hlo.atan2(hlo.imag(x), hlo.real(x))
    zero = hlo.zeros_like(x)
    return hlo.select(hlo.is_nan(x), x, hlo.select(hlo.lt(x, zero), like(math.pi, x), zero))


def conjugate(x: Value) -> Value:
    return hlo.complex_(hlo.real(x), hlo.negate(hlo.imag(x))) if x.dtype.is_complex else x


# Classification. Integers are never NaN or infinite.


def is_infinite(x: Value) -> Value:
    if x.dtype.is_complex:
        return hlo.or_(is_infinite(hlo.real(x)), is_infinite(hlo.imag(x)))
    return equals(math.inf)(hlo.abs_(x)) if is_float(x) else equals(math.inf)(x)


def equals(infinity: float) -> Unary:
    """Where x is the given infinity."""

    def function(x: Value) -> Value:
        if not is_float(x):
            return hlo.constant(False, torch.bool, x.shape)
        return hlo.eq(x, hlo.full_like(x, infinity))

    return function


def nan_to_num(x: Value, nan: float | None, posinf: float | None, neginf: float | None) -> Value:
    """NaN becomes `nan` (0), infinities the given values (the dtype's largest and least)."""
    if x.dtype.is_complex:
        parts = hlo.real(x), hlo.imag(x)
        return hlo.complex_(*(nan_to_num(part, nan, posinf, neginf) for part in parts))
    if not is_float(x):
        return x
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    result = hlo.select(hlo.is_nan(x), like(nan or 0.0, x), x)
    result = hlo.select(equals(math.inf)(x), like(high, x), result)
    return hlo.select(equals(-math.inf)(x), like(low, x), result)


# Selection.


def maximum_number(x: Value, y: Value) -> Value:
    """The larger; of a NaN and a number, the number."""
    return _numbers_first(hlo.maximum, x, y)


def minimum_number(x: Value, y: Value) -> Value:
    return _numbers_first(hlo.minimum, x, y)


def _numbers_first(function: Binary, x: Value, y: Value) -> Value:
    if not is_float(x):
        return function(x, y)
    return hlo.select(hlo.is_nan(x), y, hlo.select(hlo.is_nan(y), x, function(x, y)))


def clamp(x: Value, low: Value | None, high: Value | None) -> Value:
    """min(max(x, low), high); either bound may be missing, NaN anywhere gives NaN."""
    x = x if low is None else hlo.maximum(x, low)
    return x if high is None else hlo.minimum(x, high)


def lerp(start: Value, end: Value, weight: Value) -> Value:
    """Interpolate from the nearer end, so that weights 0 and 1 give the ends themselves."""
    span, one = hlo.subtract(end, start), hlo.full_like(weight, 1)
    near = hlo.lt(hlo.abs_(weight), like(0.5, hlo.abs_(weight)))
    from_start = hlo.add(start, hlo.multiply(weight, span))
    from_end = hlo.subtract(end, hlo.multiply(span, hlo.subtract(one, weight)))
    return hlo.select(near, from_start, from_end)
