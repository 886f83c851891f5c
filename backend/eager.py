"""Eager modes: when what is recorded is run."""

from __future__ import annotations

import enum
import os
import threading
from types import TracebackType

from . import device


class EagerMode(enum.Enum):
    """DEFER_NEVER (strict): each op runs as its own program, asynchronously where the runtime is.
    DEFER_NEVER_AND_LAUNCH_BLOCKING (debug): wait after each op and check indices."""

    DEFER_NEVER = 0
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1


_NODE_CAP = {EagerMode.DEFER_NEVER: 1, EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING: 1}
_mode = EagerMode.DEFER_NEVER
_lock = threading.Lock()


def current() -> EagerMode:
    return _mode


def switch(mode: EagerMode) -> None:
    """Set the mode of the process; what is recorded runs first."""
    global _mode
    with _lock:
        _mode = EagerMode(mode)
        if device.core is not None:
            device.core.set_mode(_mode.value, _NODE_CAP[_mode])


def apply_environment() -> None:
    """TORCH_TPU_LAUNCH_BLOCKING=1 starts in debug mode, unless the user has chosen."""
    blocking = os.environ.get("TORCH_TPU_LAUNCH_BLOCKING") == "1"
    if blocking and _mode is EagerMode.DEFER_NEVER:
        switch(EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING)
    else:
        switch(_mode)


class set_eager_mode:
    """Run a block in a mode: `with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):`."""

    def __init__(self, mode: EagerMode) -> None:
        self.mode = EagerMode(mode)
        self.before = current()

    def __enter__(self) -> None:
        self.before = current()
        switch(self.mode)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        switch(self.before)
