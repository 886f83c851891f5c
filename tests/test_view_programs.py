"""Random programs of views and mutations: device "tpu" against CPU after every step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tpu_kernels  # noqa: F401  (brings the device where the entry point is not installed)
from tests import view_programs
from tests.view_statements import Statement

PROGRAMS, CHUNK = 300, 25


@pytest.fixture(autouse=True)
def flushed_denormals() -> Iterator[None]:
    """XLA's CPU code flushes denormals; reinterpreted integers are full of them."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_programs_equal_cpu(first: int) -> None:
    failures = [view_programs.failure(seed, "tpu") for seed in range(first, first + CHUNK)]
    listings = [text for text in failures if text is not None]
    assert not listings, "\n\n".join(listings)


def test_programs_are_reproducible_and_defined() -> None:
    for seed in range(20):
        program = view_programs.generate(seed)
        assert program == view_programs.generate(seed)
        assert len(program) == view_programs.STEPS
        assert view_programs.run(program, "cpu") is None


def test_a_difference_is_found_and_shrunk() -> None:
    """A device that forgets one kind of write: the listing keeps what is needed to see it."""

    def differs(program: view_programs.Program) -> view_programs.Difference | None:
        machine = view_programs.Machine("cpu")
        for step, statement in enumerate(program):
            raised = machine.run(statement.text)
            if statement.text.startswith("b.mul_") and not raised:
                return view_programs.Difference(step, "b", "values", 1, 2)
        return None

    lines = [
        "a = torch.ones(3)",
        "c = a[1:]",
        "b = a.view(3, 1)",
        "c.add_(1)",
        "b.mul_(2)",
        "del c",
    ]
    program = view_programs.shrink([Statement(line) for line in lines], differs)
    assert [s.text for s in program] == ["a = torch.ones(3)", "b = a.view(3, 1)", "b.mul_(2)"]


def test_states_that_differ_are_told_apart() -> None:
    def state(*lines: str) -> dict:
        machine = view_programs.Machine("cpu")
        for line in lines:
            assert machine.run(line) == ""
        return machine.state()

    base = "a = torch.zeros(4)"
    assert state(base, "b = a[1:]") == state(base, "b = a.narrow(0, 1, 3)")
    different = [
        state(base, "b = a[:3]"),
        state(base, "b = a[1:].clone()"),
        state(base, "b = a[1:]", "b[0] = 1"),
        state(base, "b = a[1:].view(3, 1)"),
        state(base, "b = a.view(torch.int32)[1:]"),
    ]
    assert all(other != state(base, "b = a[1:]") for other in different)
