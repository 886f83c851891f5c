"""Seconds per call, without the two ways in which an asynchronous device makes them lie."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["bench"]


def bench(function: Callable[[], object], windows: int = 9, seconds: float = 0.02) -> float:
    """Median seconds of one call of `function`, over `windows` of about `seconds` each.

    A window starts with an idle device and ends when all its work is done: nothing that it
    issued is billed to the next. The first calls, which may compile, are not counted.
    """
    synchronize = torch.get_device_module("tpu").synchronize
    for _ in range(2):
        function()
    synchronize()
    start = time.perf_counter()
    function()
    synchronize()
    calls = max(1, round(seconds / max(time.perf_counter() - start, 1e-9)))

    def window() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        synchronize()
        return (time.perf_counter() - begin) / calls

    return statistics.median(window() for _ in range(windows))
