"""Whole training steps, strict, against the same step on torch CPU."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import train_digits
import train_gpt
from timing import microseconds, paired, tpu
from torch import Tensor, nn
from torch.nn import functional as F

from tpu_kernels.backend import device

Loss = Callable[[Tensor, Tensor], Tensor]
OPTIMIZERS = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}


def mlp() -> nn.Module:
    sizes = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(*sizes)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Work:
    """A model, its optimizer and one batch: what a training step needs."""

    make_model: Callable[[], nn.Module]
    optimizer: str
    loss: Loss
    batch: tuple[Tensor, Tensor]


def training_step(work: Work, place: str) -> Callable[[], object]:
    """A step as users write it: the batch comes from the host, the loss goes back."""
    torch.manual_seed(0)
    model = work.make_model().to(place)
    update = OPTIMIZERS[work.optimizer](model.parameters(), lr=1e-3)

    def step() -> float:
        x, y = (t.to(place) for t in work.batch)
        loss = work.loss(model(x), y)
        update.zero_grad()
        loss.backward()
        update.step()
        return loss.item()

    return step


def cases() -> Iterator[tuple[str, Work, int, float | None]]:
    """Name, work, calls a round, bar."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(10, (64,), generator=generator)
    flat = torch.randn(64, 784, generator=generator)
    yield "MLP 784-512-512-10, SGD", Work(mlp, "SGD", F.cross_entropy, (flat, classes)), 10, 1.4
    images = torch.randn(64, 1, 8, 8, generator=generator)
    cnn = Work(train_digits.make_model, "SGD", F.cross_entropy, (images, classes))
    yield "CNN of train_digits, SGD", cnn, 5, None
    shape = train_gpt.BATCH, train_gpt.CONTEXT
    tokens, targets = (torch.randint(96, shape, generator=generator) for _ in range(2))
    gpt = Work(lambda: train_gpt.GPT(96), "AdamW", token_loss, (tokens, targets))
    yield "GPT of train_gpt, AdamW", gpt, 2, None


def step_times() -> Iterator[dict[str, object]]:
    for name, work, calls, bar in cases():
        step = training_step(work, "tpu")
        first = microseconds(step, 1)
        pair = paired(step, training_step(work, "cpu"), calls)
        yield {
            "name": name,
            "device_us": pair.device_us,
            "cpu_us": pair.cpu_us,
            "ratio": pair.ratio,
            "bar": bar,
            "first_step_s": first / 1e6,
            **profile(step),
        }


def profile(step: Callable[[], object], steps: int = 5) -> dict[str, object]:
    """Per warm step: ops recorded, programs run and compiled, and where the time goes."""
    core = device.core
    core.set_timing(True)
    before, start = tpu.stats(), time.perf_counter_ns()
    for _ in range(steps):
        step()
    whole, after = time.perf_counter_ns() - start, tpu.stats()
    core.set_timing(False)

    def spent(name: str) -> int:
        return getattr(after, name) - getattr(before, name)

    counts = {name: spent(name) // steps for name in ("recorded", "executions", "compiles")}
    shares = {name: spent(f"{name}_ns") / whole for name in ("record", "execute", "transfer")}
    return {**counts, **shares, "torch and Python": 1 - sum(shares.values())}
