"""Whether memory stays level over many steps."""

from collections.abc import Iterator
from pathlib import Path

import torch
from models import Work, training_step
from timing import tpu
from torch import nn
from torch.nn import functional as F

STEPS, WARM_UP = 10_000, 1_000
PAGE = 4096


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def growth() -> Iterator[dict[str, object]]:
    batch = torch.randn(8, 16), torch.randint(4, (8,))
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    step = training_step(Work(lambda: model, "AdamW", F.cross_entropy, batch), "tpu")
    seen = []
    for i in range(1, STEPS + 1):
        step()
        if i % WARM_UP == 0:
            tpu.synchronize()
            seen.append((resident(), tpu.memory_allocated()))
    (process, device), (process_end, device_end) = seen[0], seen[-1]
    yield {
        "name": f"steps {WARM_UP} to {STEPS}",
        "process_growth_kib": (process_end - process) / 1024,
        "device_growth_bytes": device_end - device,
        "process_mib": [round(p / 2**20, 1) for p, _ in seen],
    }
