"""Time two versions of the same work side by side, so that a busy machine slows both."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

ROUNDS = 15
tpu = torch.get_device_module("tpu")


@dataclass(frozen=True)
class Pair:
    """Medians over the rounds: microseconds a call, and the ratio within each round."""

    device_us: float
    cpu_us: float
    ratio: float


def microseconds(call: Callable[[], object], calls: int) -> float:
    """Of one call, the queue drained before and after."""
    tpu.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    tpu.synchronize()
    return (time.perf_counter() - start) / calls * 1e6


def paired(device: Callable[[], object], cpu: Callable[[], object], calls: int) -> Pair:
    """Warm both up, then alternate them for ROUNDS rounds of `calls` calls each."""
    for call in (device, cpu):
        microseconds(call, 3)
    rounds = [(microseconds(device, calls), microseconds(cpu, calls)) for _ in range(ROUNDS)]
    return Pair(
        device_us=statistics.median(d for d, _ in rounds),
        cpu_us=statistics.median(c for _, c in rounds),
        ratio=statistics.median(d / c for d, c in rounds),
    )
