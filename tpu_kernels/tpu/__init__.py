"""`torch.tpu`: the device module that torch finds the "tpu" device through."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from tpu_kernels.backend import compiler_options
from tpu_kernels.backend import device as _device
from tpu_kernels.backend.device import (
    current_device,
    device_count,
    is_available,
    set_device,
    synchronize,
)
from tpu_kernels.backend.eager import EagerMode, set_eager_mode
from tpu_kernels.backend.memory import (
    empty_cache,
    max_memory_allocated,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
)
from tpu_kernels.backend.precision import Precision, precision
from tpu_kernels.backend.random import (
    default_generator,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from tpu_kernels.backend.statistics import Stats, stats
from tpu_kernels.backend.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from tpu_kernels.tpu._properties import (
    device,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_bf16_supported,
)

__all__ = [
    "EagerMode",
    "Event",
    "Precision",
    "Stats",
    "Stream",
    "current_device",
    "current_stream",
    "default_generator",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "precision",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stats",
    "stream",
    "synchronize",
]

_ASKS_FOR_ANY = frozenset({"torch.accelerator", "torch.accelerator.memory"})
_SUBMODULES = frozenset({"compiler"})


def _lazy_init() -> None:
    """What torch calls before it uses the device.

    torch.accelerator asks for whatever device there is. A machine without a chip has none until
    its user names the device, so there it says what it says without us.
    """
    if not is_available() and sys._getframe(1).f_globals.get("__name__") in _ASKS_FOR_ANY:
        raise RuntimeError("Cannot access accelerator device when none is available.")
    _device._lazy_init()


def init() -> None:
    """Start the runtime now instead of at the first use of the device."""
    _device._lazy_init()


def is_initialized() -> bool:
    return _device.is_ready()


def _is_in_bad_fork() -> bool:
    return _device.core is not None and _device.core.in_bad_fork()


class _Module(types.ModuleType):
    """The module with the properties that torch.tpu lets one set."""

    @property
    def allow_excess_precision(self) -> bool:
        """May XLA keep more precision between fused 16-bit ops than torch does? Default False."""
        return compiler_options.allow_excess_precision()

    @allow_excess_precision.setter
    def allow_excess_precision(self, allowed: bool) -> None:
        compiler_options.set_allow_excess_precision(allowed)


sys.modules[__name__].__class__ = _Module


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"torch.tpu.{name}")
    if name == "default_generators":
        return tuple(default_generator(i) for i in range(max(1, device_count())))
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES, "allow_excess_precision", "default_generators"])
