"""Pointwise ops, casts and sequences where values are special: the host's result is the oracle."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tpu_kernels.testing import assert_close, no_compiles

NAN, INF = float("nan"), float("inf")
POLICY = {torch.float32: "FP32", torch.float64: "FP64"}

FLOATS = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, -2.5, 3, -7, 10.3, 88, -88, 1e-7, -1e-7, 0.9999999]
FLOATS += [1e4, -1e4, 1e10, -1e10, 1e30, -1e30, INF, -INF, NAN]

UNARY = (
    "abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp "
    "exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 "
    "logical_not logit nan_to_num neg positive rad2deg reciprocal relu round rsqrt sgn sigmoid "
    "sign signbit sin sinc sinh sqrt square tan tanh trunc"
).split()
BINARY = (
    "add atan2 copysign div eq floor_divide fmax fmin fmod ge gt heaviside hypot le logaddexp "
    "logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul ne nextafter pow "
    "remainder sub xlogy"
).split()
INTEGER_BINARY = (
    "add bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor div eq "
    "floor_divide fmod gcd ge lcm lt maximum minimum mul ne pow remainder sub"
).split()
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "celu": lambda x: torch.celu(x, 1.5),
    "elu": torch.nn.functional.elu,
    "gelu": torch.nn.functional.gelu,
    "gelu tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "glu": lambda x: torch.nn.functional.glu(x[:24]),
    "hardshrink": torch.nn.functional.hardshrink,
    "hardsigmoid": torch.nn.functional.hardsigmoid,
    "hardswish": torch.nn.functional.hardswish,
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -0.5, 2.5),
    "leaky_relu": torch.nn.functional.leaky_relu,
    "logsigmoid": torch.nn.functional.logsigmoid,
    "mish": torch.nn.functional.mish,
    "relu": torch.relu,
    "selu": torch.selu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "softshrink": torch.nn.functional.softshrink,
    "threshold": lambda x: torch.nn.functional.threshold(x, 0.5, -3.0),
}


def pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Every ordered pair of the values."""
    x, y = torch.meshgrid(values, values, indexing="ij")
    return x.flatten(), y.flatten()


def agree(function: Callable[..., Tensor], *operands: Tensor, policy: str = "EXACT") -> None:
    want = function(*operands)
    assert_close(function(*(x.to("tpu") for x in operands)), want, policy)


@pytest.mark.parametrize("dtype", POLICY)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype) -> None:
    agree(getattr(torch, name), torch.tensor(FLOATS, dtype=dtype), policy=POLICY[dtype])


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    agree(getattr(torch, name), *pairs(torch.tensor(FLOATS)), policy="FP32")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_gradient(name: str) -> None:
    x = torch.tensor(FLOATS, requires_grad=True)
    x_tpu = x.detach().to("tpu").requires_grad_()
    want, got = ACTIVATIONS[name](x), ACTIVATIONS[name](x_tpu)
    assert_close(got, want, "FP32")
    cotangent = torch.linspace(-2, 2, want.numel())
    want.backward(cotangent)
    got.backward(cotangent.to("tpu"))
    assert x_tpu.grad is not None and x.grad is not None
    assert_close(x_tpu.grad, x.grad, "FP32")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", INTEGER_BINARY)
def test_integers_wrap_around(name: str, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    values = [v for v in (limits.min, -3, -1, 0, 1, 2, 7, limits.max) if v >= limits.min]
    x, y = pairs(torch.tensor(values, dtype=dtype))
    if name in ("floor_divide", "fmod", "gcd", "lcm", "remainder"):  # the host traps on these
        defined = (y != 0) & ((x != limits.min) | (limits.min == 0))
        x, y = x[defined], y[defined]
    agree(getattr(torch, name), x, y, policy="FP32")


NARROW = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("target", [*INTEGERS, torch.int16, torch.bool, *NARROW])
def test_float_casts(target: torch.dtype) -> None:
    values = torch.tensor(
        [0.0, -0.0, 0.9, -1.5, 255.9, 300.7, -129.0, 2.0**31, 3e9, 1e20, INF, NAN]
    )
    for source in (values, values.double()):
        want, got = source.to(target), source.to("tpu").to(target).cpu()
        assert got.dtype == target
        assert_close(got.double(), want.double(), "EXACT")


@pytest.mark.parametrize("decimals", [0, 3, -3])
def test_round_to_decimals(decimals: int) -> None:
    x = torch.cat([torch.arange(-20, 20) * 500.0 + 0.5, torch.arange(-20, 20) / 16])
    agree(lambda x: x.round(decimals=decimals), x)


EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "a quotient by a scalar": lambda k: (k * 7) / 7,
    "a floored quotient": lambda k: (k * 49) // 49,
    "the square root of a square": lambda k: (k * k).sqrt(),
    "a power of two": lambda k: (k % 100).exp2(),
    "the logarithm of a power of two": lambda k: (2.0 ** (k % 100)).log2(),
    "the logarithm of a power of ten": lambda k: (10.0 ** (k % 20)).log10(),
    "a square": lambda k: (k + 0.1) ** 2,
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_results_stay_exact(name: str) -> None:
    agree(EXACT[name], torch.arange(1.0, 1000.0))


SEQUENCES: dict[str, Callable[[str], Tensor]] = {
    "arange": lambda device: torch.arange(-3, 4, 0.1, device=device),
    "arange int": lambda device: torch.arange(10, -10, -3, device=device),
    "arange int of floats": lambda device: torch.arange(1.5, 9.5, 2.5, dtype=torch.int64).to(
        device
    ),
    "linspace": lambda device: torch.linspace(-3, 10, 101, device=device),
    "linspace int": lambda device: torch.linspace(-3, 10, 7, dtype=torch.int64, device=device),
    "linspace of one": lambda device: torch.linspace(5, 9, 1, device=device),
    "logspace": lambda device: torch.logspace(-3, 3, 13, base=2.0, device=device),
    "eye": lambda device: torch.eye(3, 5, device=device),
    "full": lambda device: torch.full((2, 3), 7, device=device),
    "tril": lambda device: torch.ones(3, 4, device=device).tril(-1),
    "triu": lambda device: torch.ones(2, 3, 4, device=device).triu(1),
    "tril_indices": lambda device: torch.tril_indices(4, 3, 1, device=device),
    "triu_indices": lambda device: torch.triu_indices(4, 6, -1, device=device),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name: str) -> None:
    assert_close(SEQUENCES[name]("tpu"), SEQUENCES[name]("cpu"), "FP32")


DYNAMIC: dict[str, Callable[[Tensor, float], object]] = {
    "add alpha": lambda x, s: torch.add(x, x, alpha=s),
    "mul": lambda x, s: x * s,
    "rsub": lambda x, s: s - x,
    "compare": lambda x, s: x < s,
    "clamp": lambda x, s: x.clamp(-s, s),
    "lerp": lambda x, s: x.lerp(x + 1, s),
    "addcdiv_": lambda x, s: x.clone().addcdiv_(x, x + 1, value=s),
    "power of a scalar": lambda x, s: s**x,
    "fill_": lambda x, s: x.clone().fill_(s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0.5, s),
    "foreach": lambda x, s: torch._foreach_addcmul([x], [x], [x], [s]),
    "uniform_": lambda x, s: x.clone().uniform_(-s, s),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_scalars_are_operands(name: str) -> None:
    x = torch.rand(5).to("tpu")
    DYNAMIC[name](x, 0.125)
    with no_compiles():
        DYNAMIC[name](x, 0.75)
