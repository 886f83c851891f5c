"""One operator on a device, forward and backward, against the CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

from tpu_kernels.testing import assert_close

from . import expectations
from .samples import Sample, database, dtype_of, moved, name_of, samples, seed, widened


@dataclass
class Verdict:
    """What happened: `failure` is the first one, None when every sample passed."""

    op: str
    dtype: str
    executed: int = 0
    backward: int = 0
    failed: int = 0
    failure: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Terms:
    """How results are compared on `device`: under a policy, with strides, with values."""

    device: str
    policy: str
    strides: bool
    values: bool


@dataclass
class Run:
    """Results of one call on one device, flattened."""

    outputs: list[Any]
    structure: Any
    inputs: list[Any]
    gradients: list[Tensor | None]


def judge(name: str, device: str, count: int | None = 3, dtype_wanted: str = "") -> Verdict:
    """Run the first `count` samples (None: all). An operator with no sample executed fails."""
    op = database()[name]
    dtype = dtype_of(op, dtype_wanted)
    verdict = Verdict(name, str(dtype).removeprefix("torch."))
    start = time.perf_counter()
    for index, sample in enumerate(samples(op, dtype, count) if dtype else ()):
        try:
            policy = expectations.policy_of(name, verdict.dtype)
            verdict.backward += _compare(name, op, sample, device, policy)
        except Exception as error:
            verdict.failed += 1
            first = str(error).strip().partition("\n\n")[0]
            verdict.failure = verdict.failure or f"sample {index}: {type(error).__name__}: {first}"
        else:
            verdict.executed += 1
    if not verdict.executed and not verdict.failure:
        verdict.failure = "no sample was executed"
    verdict.seconds = round(time.perf_counter() - start, 3)
    return verdict


def _compare(name: str, op: Any, sample: Sample, device: str, policy: str) -> bool:
    """Assert that the device does what the CPU does; tell whether gradients were compared."""
    want, got = _run(op, sample, "cpu"), _run(op, sample, device)
    terms = Terms(
        device,
        policy,
        strides=name not in expectations.STRIDES,
        values=name not in expectations.UNINITIALISED,
    )
    if name in expectations.RANDOM and not _same(want.outputs, _run(op, sample, "cpu", 1).outputs):
        terms = replace(terms, values=False)  # this sample draws numbers: each device has its own
        _assert_reproducible(got, _run(op, sample, device))
    if got.structure != want.structure:
        raise AssertionError(f"results are {got.structure}, expected {want.structure}")
    if name in expectations.NOISY:
        want = _excusing(got, want, _run(op, widened(sample), "cpu"))
    for one, other in zip(got.outputs, want.outputs, strict=True):
        _assert_leaf("result", one, other, terms)
    for one, other in zip(got.inputs, want.inputs, strict=True):
        if isinstance(other, Tensor) and other._version:
            _assert_leaf("written input", one, other, terms)
    terms = replace(terms, strides=False)  # those of a gradient are autograd's business
    for one, other in zip(got.gradients, want.gradients, strict=True):
        if (one is None) != (other is None):
            raise AssertionError(f"gradient is {one}, expected {other}")
        _assert_leaf("gradient", one, other, terms)
    return bool(want.gradients)


def _excusing(got: Run, want: Run, true: Run) -> Run:
    """`want`, but what the device has where it is about as near to the true value as the CPU."""

    def nearer(one: Any, other: Any, truth: Any) -> Any:
        if not isinstance(other, Tensor) or one.shape != other.shape or not other.numel():
            return other
        error = (one.detach().cpu() - truth).abs().max()
        return one.detach().cpu() if error <= 4 * (other - truth).abs().max() else other

    outputs = list(map(nearer, got.outputs, want.outputs, true.outputs))
    gradients = list(map(nearer, got.gradients, want.gradients, true.gradients))
    return replace(want, outputs=outputs, gradients=gradients)


def _run(op: Any, sample: Sample, device: str, seeded: int = 0) -> Run:
    args, kwargs, process = sample
    host = args[1:] if name_of(op) in expectations.HOST_OPERANDS else None
    args, kwargs = moved((args, kwargs), device)
    if host is not None:
        args = (args[0], *host)
    seed(seeded)
    result = process(op(*args, **kwargs))
    outputs, structure = tree_flatten(result)
    inputs = tree_leaves((args, kwargs))
    return Run(outputs, structure, inputs, _gradients(outputs, inputs, device))


def _gradients(outputs: list, inputs: list, device: str) -> list[Tensor | None]:
    roots = [x for x in outputs if isinstance(x, Tensor) and x.requires_grad]
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad and x.is_leaf]
    if not roots or not leaves:
        return []
    cotangents = [_cotangent(root).to(device) for root in roots]
    return list(torch.autograd.grad(roots, leaves, cotangents, allow_unused=True))


def _cotangent(root: Tensor) -> Tensor:
    """Numbers between 0.5 and 1.5, so that a gradient of the wrong element shows."""
    generator = torch.Generator().manual_seed(root.numel())
    cotangent = torch.rand(root.shape, generator=generator, dtype=torch.float32) + 0.5
    dense = cotangent.to(root.dtype)
    return dense if root.layout == torch.strided else dense.to_sparse(layout=root.layout)


def _same(one: list, other: list) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if not isinstance(a, Tensor):
            return a == b
        return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)

    return all(map(equal, one, other))


def _assert_reproducible(first: Run, second: Run) -> None:
    one, other = ([x.cpu() for x in run.outputs] for run in (first, second))
    if not _same(one, other):
        raise AssertionError("the same seed gives other numbers the second time")


def _assert_leaf(what: str, got: Any, want: Any, terms: Terms) -> None:
    try:
        if isinstance(want, Tensor):
            _assert_tensor(got, want, terms)
        elif terms.values and not (type(got) is type(want) and (got == want or got != got)):
            raise AssertionError(f"is {got!r}, expected {want!r}")
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


def _assert_tensor(got: Tensor, want: Tensor, terms: Terms) -> None:
    if got.device.type != torch.device(terms.device).type:
        raise AssertionError(f"is on {got.device}, expected {terms.device}")
    if got.layout != want.layout:
        raise AssertionError(f"layout is {got.layout}, expected {want.layout}")
    strides = terms.strides and want.layout == torch.strided
    if want.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    if not terms.values:
        # The same checks, with values that cannot differ.
        got, want = torch.zeros_like(got), torch.zeros_like(want)
    assert_close(got, want, terms.policy, stride=strides)
