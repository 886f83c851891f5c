"""What tests of device results share: named tolerances, and counters to assert on.

    assert_close(x_tpu.matmul(w_tpu), x.matmul(w), policy="FP32_ACCUM")
    with no_compiles():
        step(batch)

A test names a policy and never invents a number. A new policy needs a reason beside its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor

__all__ = ["POLICIES", "Bound", "Counts", "Policy", "assert_close", "no_compiles", "program_count"]


@dataclass(frozen=True)
class Bound:
    """At least `share` of the elements satisfy |got - want| <= atol + rtol * |want|.

    rms: added to atol in multiples of the root mean square of `want`.
    first: judge only that many leading elements (None: all of them).
    """

    share: float
    rtol: float
    atol: float
    rms: float = 0.0
    first: int | None = None

    def __str__(self) -> str:
        scaled = f" + {self.rms:g} x rms(want)" if self.rms else ""
        of = "" if self.first is None else f" of the first {self.first}"
        return f"{self.share:.1%}{of} within rtol={self.rtol:g}, atol={self.atol:g}{scaled}"


@dataclass(frozen=True)
class Policy:
    """A named tolerance: every bound holds.

    result: a dtype that `got` may have although `want`, a reference, is wider.
    """

    name: str
    bounds: tuple[Bound, ...]
    result: torch.dtype | None = None


EXACT = Policy("EXACT", (Bound(1, 0, 0),))  # integers, booleans, movement, indexing
FP64 = Policy("FP64", (Bound(1, 1e-9, 1e-11),))
# Pointwise and short reductions in float32.
FP32 = Policy("FP32", (Bound(0.999, 1e-5, 1e-6), Bound(1, 1e-4, 1e-5)))
# Matmul, convolution, norms, attention and their gradients in float32.
FP32_ACCUM = Policy("FP32_ACCUM", (Bound(0.999, 1e-4, 1e-5), Bound(1, 1e-3, 1e-4)))
# Computed in float32, rounded once.
BF16_OUT = Policy("BF16_OUT", (Bound(0.99, 8e-3, 1e-5), Bound(1, 1.6e-2, 1e-4)), torch.bfloat16)
# bfloat16 operands against a float32 reference.
BF16_ACCUM = Policy(
    "BF16_ACCUM",
    (Bound(0.99, 1.6e-2, 0, rms=1e-2), Bound(1, 5e-2, 0, rms=5e-2)),
    torch.bfloat16,
)
FP16_OUT = Policy("FP16_OUT", (Bound(0.99, 1e-3, 1e-6), Bound(1, 2e-3, 1e-5)), torch.float16)
# The losses of float32 training, one per step.
CURVE = Policy("CURVE", (Bound(1, 1e-3, 0, first=20), Bound(1, 1e-2, 0, first=50)))

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (EXACT, FP64, FP32, FP32_ACCUM, BF16_OUT, BF16_ACCUM, FP16_OUT, CURVE)
}


def assert_close(
    got: Tensor | Sequence[float],
    want: Tensor | Sequence[float],
    policy: str | Policy = "FP32",
    *,
    stride: bool = False,
) -> None:
    """Assert shape, dtype, strides when asked, then values: `got` against the reference `want`.

    Tensors may be on any device; sequences of numbers become float64 tensors. Integers and
    booleans are EXACT under every policy. Equal NaNs and equal infinities are close.
    Raises AssertionError with the policy, the share outside and the worst element.
    """
    if isinstance(policy, str):
        policy = POLICIES[policy]
    got, want = _tensor(got), _tensor(want)
    if got.shape != want.shape:
        raise AssertionError(f"shape is {tuple(got.shape)}, expected {tuple(want.shape)}")
    _assert_dtype(got.dtype, want.dtype, policy)
    if stride and _significant(got) != _significant(want):
        raise AssertionError(f"strides are {got.stride()}, expected {want.stride()}")
    got, want = got.detach().cpu(), want.detach().cpu()
    if not (got.dtype.is_floating_point or got.dtype.is_complex):
        policy = EXACT
    _assert_values(got, want, policy)


def _tensor(value: Tensor | Sequence[float]) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _assert_dtype(got: torch.dtype, want: torch.dtype, policy: Policy) -> None:
    wider = (torch.float32, torch.float64)
    if got != want and not (got == policy.result and want in wider):
        raise AssertionError(f"dtype is {got}, expected {want}")


def _significant(tensor: Tensor) -> list[int]:
    """Strides that decide where an element lies."""
    if tensor.numel() == 0:
        return []
    return [s for size, s in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _assert_values(got: Tensor, want: Tensor, policy: Policy) -> None:
    same = (got == want) | (got.isnan() & want.isnan())
    if same.all():
        return
    exact = not any(bound.rtol or bound.atol or bound.rms for bound in policy.bounds)
    if exact and not got.dtype.is_complex:
        difference = torch.where(same, 0.0, math.inf)  # float64 would not tell large integers apart
        wide = want
    else:
        wide = want.to(torch.complex128 if want.dtype.is_complex else torch.float64)
        difference = torch.where(same, 0.0, (got.to(wide.dtype) - wide).abs())
        difference = difference.nan_to_num(nan=math.inf)
    for bound in policy.bounds:
        _assert_bound(got, want, difference, wide, bound, policy)


def _assert_bound(
    got: Tensor, want: Tensor, difference: Tensor, wide: Tensor, bound: Bound, policy: Policy
) -> None:
    n = got.numel() if bound.first is None else min(bound.first, got.numel())
    difference, size = difference.flatten()[:n], wide.flatten()[:n].abs()
    allowed = torch.full_like(difference, bound.atol)
    if bound.rtol:
        allowed += bound.rtol * size.nan_to_num(nan=0.0, posinf=0.0)
    if bound.rms:
        allowed += bound.rms * size[size.isfinite()].square().mean().sqrt().nan_to_num(nan=0.0)
    outside = difference > allowed
    count = int(outside.sum())
    if count <= (1 - bound.share) * n:
        return
    worst = int(torch.where(outside, difference - allowed, -1.0).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape))
    raise AssertionError(
        f"values differ under policy {policy.name} ({bound}): {count} of {n} elements "
        f"({count / n:.2%}) are outside; worst at {index}: got {got[index].item()}, "
        f"expected {want[index].item()}, allowed difference {allowed[worst].item():.3g}"
    )


@dataclass
class Counts:
    """What the device did inside a `with` block: differences of `torch.tpu.stats()`."""

    recorded: int = 0
    hits: int = 0
    misses: int = 0
    compiles: int = 0
    executions: int = 0
    fallbacks: int = 0
    transfers: int = 0


def _now() -> Counts:
    device = torch.get_device_module("tpu")
    device.synchronize()  # what was recorded so far has been compiled and run
    stats = device.stats()
    return Counts(*(getattr(stats, field.name) for field in fields(Counts)))


@contextmanager
def program_count() -> Iterator[Counts]:
    """Count what the device does in the block: the yielded `Counts` is filled when it ends.

    Work recorded before the block is finished first, and the block's own work before it ends.
    """
    counts, before = Counts(), _now()
    yield counts
    after = _now()
    for field in fields(Counts):
        setattr(counts, field.name, getattr(after, field.name) - getattr(before, field.name))


@contextmanager
def no_compiles() -> Iterator[None]:
    """Assert that the block compiles no program."""
    with program_count() as counts:
        yield
    if counts.compiles:
        raise AssertionError(f"{counts.compiles} programs were compiled, expected none: {counts}")
