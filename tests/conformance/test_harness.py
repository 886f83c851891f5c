"""The harness itself: the CPU against the CPU, and failures that it must find."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from . import expectations
from .expectations import surprise
from .judge import judge
from .known_failures import KNOWN_FAILURES
from .samples import database, dtype_of, moved, samples

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name", "add as_strided.partial_views empty linalg.svd nn.functional.dropout sort".split()
)
def test_cpu_agrees_with_itself(name: str) -> None:
    verdict = judge(name, "cpu", 3)
    assert verdict.failure is None
    assert verdict.executed >= 1


def test_lists_name_operators_of_the_database() -> None:
    listed = {*expectations.ACCUMULATES, *expectations.UNINITIALISED, *expectations.RANDOM}
    listed |= {*expectations.STRIDES, *expectations.EXCLUDED, *expectations.CORE}
    assert not listed - database().keys()
    for name, dtype in KNOWN_FAILURES:
        assert str(dtype_of(database()[name])) == f"torch.{dtype}", name
    assert all(KNOWN_FAILURES.values())


Op = Callable[..., Any]
# What the device does differently -> the failure that must be found.
WRONG: dict[str, tuple[Callable[[Op, bool], Op], str]] = {
    "value": (lambda op, dev: lambda *a, **k: op(*a, **k) * (1.001 if dev else 1), "values differ"),
    "dtype": (lambda op, dev: lambda *a: op(*a).double() if dev else op(*a), "dtype is"),
    "shape": (lambda op, dev: lambda *a: op(*a)[None] if dev else op(*a), "shape is"),
    "gradient": (
        lambda op, dev: lambda x: op(x) + (x - x.detach()) * (0.01 if dev else 0),
        "gradient: values differ",
    ),
    "exception": (lambda op, dev: lambda *a: op(*a) if not dev else [][0], "IndexError"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_difference_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two runs is the device's."""
    op = database()["exp"]
    wrong, text = WRONG[kind]
    calls = 0

    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return wrong(torch.exp, calls % 2 == 0)(*args, **kwargs)

    monkeypatch.setattr(type(op), "__call__", call)
    verdict = judge("exp", "cpu", 2)
    assert verdict.failed
    assert text in (verdict.failure or "")


def test_no_sample_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database()["exp"], "sample_inputs", lambda *a, **k: iter(()))
    assert judge("exp", "cpu").failure == "no sample was executed"


def test_known_failures_are_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_FAILURES, ("exp", "float32"), "reason")
    assert surprise("exp", "float32", "fails") is None
    assert surprise("exp", "float32", None) == "passes, but known_failures.py has it: reason"
    assert surprise("sin", "float32", "fails") == "fails"
    assert surprise("sin", "float32", None) is None


def test_moving_keeps_strides_and_sharing() -> None:
    base = torch.arange(12.0)
    tree = [base.view(3, 4).t(), base[2:5], torch.zeros(1).expand(7), base.view(3, 4)[:, 1].conj()]
    new = moved(tree, "cpu")
    for one, other in zip(new, tree, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
        assert one.storage_offset() == other.storage_offset()
    new[0][0, 0] = -1  # element 0 of the shared base
    new[1].fill_(7)
    assert base[0] == 0 and base[2] == 2
    assert new[0][2, 0] == 7


def test_samples_are_the_same_each_time() -> None:
    op = database()["add"]
    one, other = (samples(op, torch.float32, 3) for _ in range(2))
    assert len(one) == 3
    assert all(torch.equal(a[0][0], b[0][0]) for a, b in zip(one, other, strict=True))
