"""Exceptions: each names what was given, the rule, and the remedy."""

from __future__ import annotations

import torch

__all__ = ["DeviceOutOfMemory", "DonatedTensor", "Unsupported", "VersionMismatch"]


class Unsupported(NotImplementedError):
    """An operation, dtype or option that the device does not implement.

    op: the operation as the user would write it. why: the limit that was met, with what was given.
    remedy: what to do instead.
    """

    def __init__(self, op: str, why: str, remedy: str = "") -> None:
        self.op, self.why, self.remedy = op, why, remedy
        super().__init__(f"{op}: {why}" + (f"; {remedy}" if remedy else ""))


class VersionMismatch(RuntimeError):
    """The installed torch, jaxlib and PJRT plugin do not work together (the self-test failed)."""


class DonatedTensor(RuntimeError):
    """A tensor was read after its memory had been given to another operation."""


class DeviceOutOfMemory(torch.OutOfMemoryError):
    """An allocation did not fit in device memory; the message gives the sizes in bytes."""
