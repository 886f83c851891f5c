"""Bytes that device values hold: our own accounting, since the CPU client keeps none."""

from __future__ import annotations

import torch

from . import device as _device


def _read(device: object, name: str) -> int:
    if not _device.is_ready():
        return 0
    _device.core.flush()
    return _device.core.memory(_device.index_of(device))[name]


def memory_allocated(device: object = None) -> int:
    """Bytes held by values of live tensors. A tensor that was never written holds none."""
    return _read(device, "allocated")


def max_memory_allocated(device: object = None) -> int:
    """The most bytes held at once since the start or the last reset."""
    return _read(device, "peak")


def memory_reserved(device: object = None) -> int:
    """As memory_allocated: nothing is held back."""
    return memory_allocated(device)


def memory_stats(device: object = None) -> dict[str, int]:
    """torch.accelerator.memory_stats of a device, by the same names."""
    index = _device.index_of(device)
    return dict(torch.accelerator.memory_stats(index)) if _device.is_ready() else {}


def reset_peak_memory_stats(device: object = None) -> None:
    if _device.is_ready():
        _device.core.reset_peak_memory(_device.index_of(device))


def empty_cache() -> None:
    """Run what is recorded and free what nothing uses; no memory is kept in reserve."""
    if _device.is_ready():
        _device.core.flush()
