"""Wrong inputs: torch's database has them too. The device must refuse what the CPU refuses."""

from __future__ import annotations

from typing import Any

import torch

from .samples import database, moved, seed

# {(operator, number of the wrong input): why the device says something else than the CPU}
KNOWN_DIFFERENCES: dict[tuple[str, int], str] = {
    ("uniform", 0): "the limits are operands of the program, which cannot refuse them",
    ("complex", 2): "a result is converted to the dtype of out=",
    ("aminmax", 3): "a result is converted to the dtype of out=",
    ("multinomial", 2): "a result is converted to the dtype of out=",
}
KNOWN_DIFFERENCES |= {
    (name, index): "the inputs are read before out= is written, so their overlap does no harm"
    for name, index in (("masked_select", 1), ("masked_select", 2), ("cat", 7), ("cat", 8))
}


def judge_errors(name: str, device: str) -> tuple[int, list[str]]:
    """(wrong inputs tried, where the type of the exception is not as expected).

    The device is in its debug mode, the one that looks at indices.
    """
    op = database()[name]
    if op.error_inputs_func is None:
        return 0, []
    seed()
    inputs = [wrong.sample_input for wrong in op.error_inputs("cpu")]
    differences = []
    tpu = torch.get_device_module("tpu")
    with tpu.set_eager_mode(tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
        for index, wrong in enumerate(inputs):
            want, got = _error(op, wrong, "cpu"), _error(op, wrong, device)
            same = want is None or type(got) is type(want)
            if same == ((name, index) in KNOWN_DIFFERENCES):
                differences.append(f"input {index}: {got!r}, the CPU has {want!r}")
    return len(inputs), differences


def _error(op: Any, wrong: Any, device: str) -> Exception | None:
    try:
        args, kwargs = moved(((wrong.input, *wrong.args), wrong.kwargs), device)
        op(*args, **kwargs)
    except Exception as error:
        return error
    return None
