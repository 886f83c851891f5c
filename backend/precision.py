"""What precision a float32 contraction runs at: the one place that knows.

On a TPU the multiplier takes bf16, so unset means StableHLO DEFAULT (one bf16 pass). On the CPU
client float32 is float32 whatever the attribute says. `high` is 3 passes, `highest` is 6.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from . import thread_context


class Precision(enum.Enum):
    """Precision of float32 matrix products and convolutions on the device."""

    DEFAULT = "DEFAULT"
    HIGH = "HIGH"
    HIGHEST = "HIGHEST"


_warned: set[Precision] = set()


@contextmanager
def precision(mode: Precision | str) -> Iterator[None]:
    """Run float32 contractions inside the block at `mode`; overrides torch's global setting."""
    mode = Precision(mode.upper()) if isinstance(mode, str) else Precision(mode)
    with thread_context.extended(precision=mode.value):
        yield


def current() -> Precision:
    """The precision in force: the local context, else torch's setting where the user set one."""
    local = thread_context.current().precision
    if local is not None:
        return Precision(local)
    if torch.backends.cuda.matmul.fp32_precision == "none":
        return Precision.DEFAULT
    setting = torch.get_float32_matmul_precision()
    return {"highest": Precision.HIGHEST, "high": Precision.HIGH}.get(setting, Precision.DEFAULT)


def warn_once(mode: Precision) -> None:
    """Say once what a precision above the default costs on a TPU."""
    if mode is not Precision.DEFAULT and mode not in _warned:
        _warned.add(mode)
        passes = {Precision.HIGH: 3, Precision.HIGHEST: 6}[mode]
        warnings.warn(
            f"float32 precision {mode.name} takes {passes} bf16 passes per product on a TPU",
            stacklevel=3,
        )


def of(dtype: torch.dtype) -> Precision:
    """The precision of a contraction whose operands have `dtype`; only float32 has a choice."""
    return current() if dtype in (torch.float32, torch.complex64) else Precision.DEFAULT
