"""How many programs are compiled where only an offset, a scalar or a step number changes."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from timing import tpu
from torch import nn

COUNT = 1000


def compiles(call: Callable[[], object]) -> int:
    tpu.synchronize()
    before = tpu.stats().compiles
    call()
    tpu.synchronize()
    return tpu.stats().compiles - before


def rows() -> None:
    x = torch.ones(COUNT, 64, device="tpu")
    for i in range(COUNT):
        x[i] + 1


def minibatches() -> None:
    x = torch.ones(COUNT * 8, 16, device="tpu")
    for i in range(COUNT):
        x[i * 8 : (i + 1) * 8] * 2


def steps(optimizer: torch.optim.Optimizer, model: nn.Module, count: int) -> None:
    """Train with a learning rate that changes each step."""
    x = torch.ones(4, 8, device="tpu")
    for i in range(count):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 / (i + 1)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def program_counts() -> Iterator[dict[str, object]]:
    for name, call in ((f"{COUNT} rows x[i]", rows), (f"{COUNT} minibatch slices", minibatches)):
        yield {"name": name, "compiles": compiles(call), "bar": 2}
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        model = nn.Linear(8, 8).to("tpu")
        train = partial(steps, kind(model.parameters(), lr=1e-3), model)
        train(3)
        made = compiles(partial(train, 50))
        yield {"name": f"50 {kind.__name__} steps, new lr each", "compiles": made, "bar": 0}
