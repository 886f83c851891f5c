"""Wrong inputs: torch's database has them too. The device must refuse what the CPU refuses."""

from __future__ import annotations

from typing import Any

from .samples import database, moved, seed

# {operator: why the device says something else than the CPU for one of its wrong inputs}
KNOWN_DIFFERENCES: dict[str, str] = {}


def judge_errors(name: str, device: str) -> tuple[int, list[str]]:
    """(wrong inputs tried, where the type of the exception is not the CPU's)."""
    op = database()[name]
    if op.error_inputs_func is None:
        return 0, []
    seed()
    inputs = [wrong.sample_input for wrong in op.error_inputs("cpu")]
    differences = []
    for index, wrong in enumerate(inputs):
        want, got = _error(op, wrong, "cpu"), _error(op, wrong, device)
        if want is not None and type(got) is not type(want):
            differences.append(f"input {index}: {got!r}, expected {want!r}")
    return len(inputs), differences


def _error(op: Any, wrong: Any, device: str) -> Exception | None:
    args, kwargs = moved(((wrong.input, *wrong.args), wrong.kwargs), device)
    try:
        op(*args, **kwargs)
    except Exception as error:
        return error
    return None
