"""Streams and events under the names that users of other devices know.

A device runs its work in one order, the order it was issued in. A stream is a name for a place in
that order; waiting for another stream is therefore free, and never wrong.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from . import device as _device


class Stream(torch.Stream):
    """A stream of the device. `priority` and `pinned` are accepted and change nothing."""

    def __new__(
        cls, device: object = None, priority: int = 0, *, pinned: object = None, **ids: int
    ) -> Stream:
        if ids:
            return super().__new__(cls, priority=priority, **ids)
        _device._lazy_init()
        place = torch.device("tpu", _device.index_of(device))
        return super().__new__(cls, device=place, priority=priority)


class Event(torch.Event):
    """An event of the device; with enable_timing, elapsed_time gives milliseconds of host time."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: object = None,
    ) -> Event:
        _device._lazy_init()
        place = torch.device("tpu", _device.index_of(device))
        return super().__new__(
            cls, place, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
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
