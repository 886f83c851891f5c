"""Counters of the device, to assert on."""

from __future__ import annotations

from dataclasses import dataclass

from . import device


@dataclass(frozen=True)
class Stats:
    """Since the process began. recorded: calls; hits, misses: of the trace trie; compiles: by XLA
    (programs from the disk cache do not count); executions: of programs; fallbacks: ops run on the
    CPU; transfers: host copies either way; programs: held in memory. Times are in nanoseconds and
    counted only while `device.core.set_timing(True)`."""

    recorded: int = 0
    hits: int = 0
    misses: int = 0
    compiles: int = 0
    executions: int = 0
    fallbacks: int = 0
    transfers: int = 0
    programs: int = 0
    record_ns: int = 0
    execute_ns: int = 0
    transfer_ns: int = 0


_fallbacks = 0


def count_fallback() -> None:
    global _fallbacks
    _fallbacks += 1


def stats() -> Stats:
    """What the device has done in this process; all zero before its first use."""
    if not device.is_ready():
        return Stats()
    from . import pjrt

    return Stats(compiles=pjrt.client().compiles, fallbacks=_fallbacks, **device.core.stats())
