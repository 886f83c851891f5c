"""Bringing the device up, and what `torch.tpu` answers.

States: the core is loaded (torch knows the device type); enabled (it counts as available); ready
(client started, operations registered). A machine without a chip reaches "enabled" only when the
user asks for the device.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from types import ModuleType
from typing import Any

import torch

from . import build
from .pjrt_choice import chip_present

core: Any = None
_lock = threading.RLock()
_ready = False


def load_core(compile_if_missing: bool = True) -> ModuleType | None:
    """The C++ core, loaded once; None if it is not built and may not be compiled now."""
    global core
    with _lock:
        if core is None:
            path = build.build() if compile_if_missing else build.find()
            if path is None:
                return None
            core = build.load(path)
        return core


def wanted() -> bool:
    """Does this process count the device as available without having used it?"""
    return os.environ.get("TPU_KERNELS_CPU") == "1" or chip_present()


def enable() -> None:
    """Count the device as available."""
    from .pjrt_choice import choose

    loaded = load_core()
    assert loaded is not None
    if not loaded.enabled():
        loaded.enable(max(1, choose().cpu_devices))


def _lazy_init() -> None:
    """Start the runtime; torch calls this for the first device tensor. Thread-safe."""
    global _ready
    if _ready and not core.in_bad_fork():
        return
    with _lock:
        loaded = load_core()
        assert loaded is not None
        if loaded.in_bad_fork():
            from .pjrt_errors import forked

            raise forked()
        if _ready:
            return
        from . import operations, pjrt, recorder

        client = pjrt.client()
        operations.register(loaded)
        loaded.set_callbacks(recorder)
        loaded.set_precision_matters(client.platform == "tpu")
        loaded.start(len(client.devices))
        _apply_mode_from_environment()
        atexit.register(loaded.shut_down)
        _say_where(client)
        _ready = True


def _apply_mode_from_environment() -> None:
    from . import eager

    eager.apply_environment()


def _say_where(client: Any) -> None:
    """Once, so that nobody takes the CPU for a chip; silent where it was asked for."""
    if (
        client.platform == "cpu"
        and not client.is_plugin
        and os.environ.get("TPU_KERNELS_CPU") != "1"
    ):
        print(
            "tpu_kernels: no TPU found; device 'tpu' runs on this machine's CPU through XLA "
            "(set TPU_KERNELS_CPU=1 to say that this is meant)",
            file=sys.stderr,
        )


def is_ready() -> bool:
    return _ready


def is_available() -> bool:
    """Is there a device to use without asking for it by name?"""
    if core is not None and core.enabled():
        return True
    return wanted()


def device_count() -> int:
    if not is_available():
        return 0
    from . import pjrt

    return pjrt.device_count()


def index_of(device: Any = None) -> int:
    """A device index from an index, a torch.device, a string or None (the current one)."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    parsed = torch.device(device)
    if parsed.type != "tpu":
        raise ValueError(f"expected a tpu device, got {parsed}")
    return current_device() if parsed.index is None else parsed.index


def current_device() -> int:
    return core.current_device() if core is not None else 0


def set_device(device: object) -> None:
    index = index_of(device)
    if index >= 0:
        _lazy_init()
        core.set_current_device(index)


def synchronize(device: object = None) -> None:
    """Wait until all work issued to the device is done.

    Does not start a device that was never used: torch's profiler calls this on every machine.
    """
    index = index_of(device)
    if _ready:
        _lazy_init()  # refuses in a forked child
        core.synchronize(index)
