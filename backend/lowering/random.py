"""Random tensors: each call draws from its generator's counter, through `rng`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload, OpOverloadPacket

from .. import hlo
from ..hlo import Value
from ..promotion import scalar
from ..registry import Aval, decompose, lower
from ..rng import Rng
from .creation import cast
from .elementary import like
from .scan import cumsum

aten = torch.ops.aten

Sample = Callable[..., Value]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What random numbers of a dtype are computed in."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def drawn(op: OpOverload | OpOverloadPacket, sample: Sample, parameters: str = "") -> None:
    """A row whose result is `sample(rng, aval, *parameters)`, the parameters broadcast to it."""
    names = parameters.split()
    overload = op if isinstance(op, OpOverload) else op.default

    def lowered(*, aval: Aval, rng: Rng, **given: object) -> Value:
        dtype = _wide(aval.dtype)
        values = (hlo.convert(scalar(given[name]), dtype) for name in names)
        return cast(sample(rng, aval, *(hlo.broadcast(x, aval.shape) for x in values)), aval.dtype)

    tensors = {a.name for a in overload._schema.arguments if "Tensor" in str(a.type)}
    lower(overload, lowered, dynamic=" ".join(name for name in names if name not in tensors))


def _standard_uniform(rng: Rng, aval: Aval) -> Value:
    """In [0, 1), and still below 1 when rounded to the result's dtype."""
    u = rng.uniform(aval.shape, _wide(aval.dtype))
    if not aval.dtype.is_floating_point or aval.dtype.itemsize > 2:
        return u
    steps = hlo.full_like(u, 2 / torch.finfo(aval.dtype).eps)
    return hlo.divide(hlo.floor(hlo.multiply(u, steps)), steps)


def _uniform(rng: Rng, aval: Aval, low: Value, high: Value) -> Value:
    return hlo.add(hlo.multiply(_standard_uniform(rng, aval), hlo.subtract(high, low)), low)


def _standard_normal(rng: Rng, aval: Aval) -> Value:
    return rng.normal(aval.shape, _wide(aval.dtype))


def _normal(rng: Rng, aval: Aval, mean: Value, std: Value) -> Value:
    """Of a complex dtype: both parts, which share the variance."""
    if not aval.dtype.is_complex:
        return hlo.add(hlo.multiply(_standard_normal(rng, aval), std), mean)
    std = hlo.divide(std, like(math.sqrt(2), std))
    parts = (hlo.multiply(_standard_normal(rng, aval), std) for _ in range(2))
    return hlo.add(hlo.complex_(*parts), hlo.convert(mean, torch.complex64))


def _log_normal(rng: Rng, aval: Aval, mean: Value, std: Value) -> Value:
    return hlo.exponential(_normal(rng, aval, mean, std))


def _bernoulli(rng: Rng, aval: Aval, p: Value) -> Value:
    return hlo.convert(hlo.lt(rng.uniform(p.shape, p.dtype), p), torch.int8)


def _standard_exponential(rng: Rng, shape: hlo.Shape, dtype: torch.dtype) -> Value:
    """Never zero: the least value stands for the interval above it."""
    u = rng.uniform(shape, dtype)
    value = hlo.negate(hlo.log_plus_one(hlo.negate(u)))
    return hlo.maximum(value, hlo.full_like(value, torch.finfo(dtype).eps / 4))


def _exponential(rng: Rng, aval: Aval, lambd: Value) -> Value:
    return hlo.divide(_standard_exponential(rng, aval.shape, lambd.dtype), lambd)


def _geometric(rng: Rng, aval: Aval, p: Value) -> Value:
    """The number of trials up to the first success."""
    waiting = _standard_exponential(rng, aval.shape, p.dtype)
    trials = hlo.ceil(hlo.divide(waiting, hlo.negate(hlo.log_plus_one(hlo.negate(p)))))
    return hlo.maximum(trials, hlo.full_like(trials, 1))


def _cauchy(rng: Rng, aval: Aval, median: Value, sigma: Value) -> Value:
    u = rng.uniform(aval.shape, median.dtype)
    angle = hlo.multiply(hlo.subtract(u, hlo.full_like(u, 0.5)), like(math.pi, u))
    return hlo.add(median, hlo.multiply(sigma, hlo.tan(angle)))


drawn(aten.uniform, _uniform, "from to")
for op in (aten.rand, aten.rand.generator, aten.rand_like, aten.rand_like.generator):
    drawn(op, _standard_uniform)
for op in (aten.randn, aten.randn.generator, aten.randn_like, aten.randn_like.generator):
    drawn(op, lambda rng, aval: _normal(rng, aval, *_zero_and_one(aval)))
for op in (
    aten.normal_,
    aten.normal_functional,
    aten.normal.float_float,
    aten.normal.Tensor_float,
    aten.normal.float_Tensor,
    aten.normal.Tensor_Tensor,
):
    drawn(op, _normal, "mean std")
drawn(aten.log_normal, _log_normal, "mean std")
drawn(aten.bernoulli, _bernoulli, "self")
drawn(aten.bernoulli.p, _bernoulli, "p")
drawn(aten.bernoulli.Tensor, _bernoulli, "p")
drawn(aten.exponential, _exponential, "lambd")
drawn(aten.geometric, _geometric, "p")
drawn(aten.cauchy, _cauchy, "median sigma")


def _zero_and_one(aval: Aval) -> tuple[Value, Value]:
    wide = _wide(aval.dtype)
    return hlo.constant(0, wide, aval.shape), hlo.constant(1, wide, aval.shape)


# Integers.


def _greatest(dtype: torch.dtype) -> int:
    """The largest of the consecutive whole numbers that a dtype holds."""
    if dtype is torch.bool:
        return 1
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps)
    return torch.iinfo(dtype).max


def _integers(rng: Rng, aval: Aval, low: object, high: object) -> Value:
    """Uniform in low .. high - 1, or up to the dtype's greatest if high is None. The difference
    is taken in 64 bits without sign, where 0 stands for all of them."""
    first = hlo.convert(scalar(low), torch.int64)
    if high is None:
        beyond = hlo.add(scalar(_greatest(aval.dtype)), scalar(1))
    else:
        beyond = hlo.convert(scalar(high), torch.int64)
    count = hlo.broadcast(
        hlo.bitcast_convert(hlo.subtract(beyond, first), torch.uint64), aval.shape
    )
    bits = rng.bits(aval.shape, 64)
    everything = hlo.eq(count, hlo.zeros_like(count))
    offset = hlo.remainder(bits, hlo.select(everything, hlo.full_like(count, 1), count))
    offset = hlo.bitcast_convert(hlo.select(everything, bits, offset), torch.int64)
    return cast(hlo.add(offset, hlo.broadcast(first, aval.shape)), aval.dtype)


def ranged(op: OpOverload | OpOverloadPacket, low: str = "", high: str = "") -> None:
    """A row of integers between the arguments of these names; 0 and the greatest by default."""

    def lowered(*, aval: Aval, rng: Rng, **given: object) -> Value:
        return _integers(rng, aval, given.get(low, 0), given.get(high))

    lower(op, lowered, dynamic=f"{low} {high}")


ranged(aten.random)
ranged(aten.random.to, high="to")
ranged(getattr(aten.random, "from"), low="from", high="to")
for name in ("randint", "randint.generator", "randint_like", "randint_like.generator"):
    packet, _, overload = name.partition(".")
    ranged(getattr(getattr(aten, packet), overload or "default"), high="high")
for op in (
    aten.randint.low,
    aten.randint.low_generator,
    aten.randint_like.low_dtype,
    aten.randint_like.low_generator_dtype,
):
    ranged(op, low="low", high="high")


@lower(aten.randperm)
@lower(aten.randperm.generator)
def _randperm(n: int, aval: Aval, rng: Rng) -> Value:
    """The order of n random keys, wide enough that ties do not matter."""
    keys, index = rng.bits((n,), 64), hlo.iota((n,))
    order = hlo.sort([keys, index], 0, lambda a, b, *_: hlo.lt(a, b))[1]
    return hlo.convert(order, aval.dtype)


# Dropout and sampling.


@lower(aten.native_dropout)
def _native_dropout(
    input: Value, p: float, train: bool | None, aval: tuple[Aval, Aval], rng: Rng
) -> tuple[Value, Value]:
    if p == 0 or not train:
        return input, hlo.constant(True, torch.bool, input.shape)
    x = hlo.opmath(input)
    u = rng.uniform(x.shape, _wide(x.dtype))
    keep = hlo.ge(u, hlo.full_like(u, p))
    scale = hlo.full_like(x, 0.0 if p == 1 else 1 / (1 - p))
    return hlo.multiply(hlo.multiply(x, hlo.convert(keep, x.dtype)), scale), keep


decompose(aten.native_dropout_backward)


@lower(aten.multinomial)
def _multinomial(self: Value, num_samples: int, replacement: bool, aval: Aval, rng: Rng) -> Value:
    """Indices drawn with the given weights along the last dimension."""
    if not self.dtype.is_floating_point:
        raise TypeError(f"multinomial: weights must be floating-point numbers, got {self.dtype}")
    if num_samples <= 0 or self.shape[-1] > _greatest(torch.float32):
        raise ValueError(f"multinomial: cannot draw {num_samples} of {self.shape[-1]} categories")
    weights = hlo.convert(self, _wide(self.dtype))
    return (_independent if replacement else _distinct)(rng, weights, num_samples)


def _distinct(rng: Rng, weights: Value, count: int) -> Value:
    """The first arrivals at exponential clocks whose rates are the weights."""
    last = weights.ndim - 1
    clocks = hlo.divide(_standard_exponential(rng, weights.shape, weights.dtype), weights)
    indices = hlo.iota(weights.shape, last)
    arrived = hlo.sort([clocks, indices], last, lambda a, b, *_: hlo.lt(a, b))[1]
    return hlo.slice_in_dim(arrived, 0, count, dim=last)


def _independent(rng: Rng, weights: Value, count: int) -> Value:
    """The first index of positive weight whose cumulated weight exceeds a uniform number."""
    last, (*batch, categories) = weights.ndim - 1, weights.shape
    shape, lines = (*batch, count, categories), range(last)

    def spread(x: Value, dims: Sequence[int]) -> Value:
        return hlo.broadcast_in_dim(x, shape, dims)

    cumulated = cumsum(weights, last)
    total = hlo.slice_in_dim(cumulated, categories - 1, categories, dim=last)
    u = rng.uniform((*batch, count), weights.dtype)
    level = hlo.multiply(u, hlo.broadcast(total, u.shape))
    exceeds = hlo.gt(spread(cumulated, (*lines, last + 1)), spread(level, range(last + 1)))
    possible = spread(hlo.gt(weights, hlo.zeros_like(weights)), (*lines, last + 1))
    index = hlo.iota(shape, last + 1)
    beyond = hlo.full_like(index, categories)
    first = hlo.select(hlo.and_(exceeds, possible), index, beyond)
    first = hlo.reduce_min(first, [last + 1])
    greatest = hlo.reduce_max(hlo.select(possible, index, hlo.negate(beyond)), [last + 1])
    return hlo.minimum(first, greatest)


# A leaky ReLU with random slopes, which are a second result.


def _rrelu(
    self: Value,
    noise: Value,
    lower: float,
    upper: float,
    training: bool,
    aval: tuple[Aval, Aval],
    rng: Rng,
) -> tuple[Value, Value]:
    x = hlo.opmath(self)
    if training:
        bounds = (hlo.full_like(x, bound) for bound in (lower, upper))
        slope = _uniform(rng, Aval(x.shape, x.dtype), *bounds)
    else:
        slope = hlo.full_like(x, (lower + upper) / 2)
    positive = hlo.gt(x, hlo.zeros_like(x))
    slope = hlo.select(positive, hlo.full_like(x, 1), slope)
    return hlo.multiply(x, slope), slope if training else noise


lower(aten.rrelu_with_noise_functional, _rrelu)
lower(aten.rrelu_with_noise_, _rrelu)
