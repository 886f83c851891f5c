"""Streams and events under the names that users of other devices know.

A device runs its work in one order, the order it was issued in. A stream is a name for a place in
that order; waiting for another stream is therefore free, and never wrong.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from . import device as _device


class _Of(type):
    """Classes whose instances are torch's own objects: torch compares exact types."""

    made: Any

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.made) and instance.device.type == "tpu"


class Stream(metaclass=_Of):
    """A torch.Stream of the device. `priority` and `pinned` are accepted and change nothing."""

    made = torch.Stream

    def __new__(  # type: ignore[misc]
        cls, device: object = None, priority: int = 0, *, pinned: object = None
    ) -> torch.Stream:
        _device._lazy_init()
        return torch.Stream(torch.device("tpu", _device.index_of(device)), priority=priority)


class Event(metaclass=_Of):
    """A torch.Event of the device; elapsed_time, with enable_timing, is host milliseconds."""

    made = torch.Event

    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: object = None,
    ) -> torch.Event:
        _device._lazy_init()
        place = torch.device("tpu", _device.index_of(device))
        return torch.Event(
            place, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


def current_stream(device: object = None) -> torch.Stream:
    _device._lazy_init()
    return torch._C._accelerator_getStream(_device.index_of(device))


def default_stream(device: object = None) -> torch.Stream:
    _device._lazy_init()
    place = torch.device("tpu", _device.index_of(device))
    return torch.Stream(stream_id=0, device_index=place.index, device_type=20)


def set_stream(stream: torch.Stream) -> None:
    """Make a stream the current one of its device."""
    torch._C._accelerator_setStream(stream)


def stream(stream: torch.Stream) -> AbstractContextManager:
    """Make a stream the current one inside a block."""
    return stream
