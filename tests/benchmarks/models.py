"""Whole training steps, strict, against the same step on torch CPU."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import train_digits
import train_gpt
from timing import microseconds, paired, tpu
from torch import Tensor, nn
from torch.nn import functional as F

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


def training_step(work: Work, device: str) -> Callable[[], object]:
    """A step on the batch, which is on the device already; nothing is read back."""
    torch.manual_seed(0)
    model = work.make_model().to(device)
    update = OPTIMIZERS[work.optimizer](model.parameters(), lr=1e-3)
    x, y = (t.to(device) for t in work.batch)

    def step() -> None:
        update.zero_grad()
        work.loss(model(x), y).backward()
        update.step()

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
        device = training_step(work, "tpu")
        first = microseconds(device, 1)
        pair = paired(device, training_step(work, "cpu"), calls)
        yield {
            "name": name,
            "device_us": pair.device_us,
            "cpu_us": pair.cpu_us,
            "ratio": pair.ratio,
            "bar": bar,
            "first_step_s": first / 1e6,
            **counted(device),
        }


def counted(step: Callable[[], object]) -> dict[str, object]:
    """What one warm step does: ops recorded, programs run, programs compiled."""
    before = tpu.stats()
    step()
    after = tpu.stats()
    names = ("recorded", "executions", "compiles")
    return {name: getattr(after, name) - getattr(before, name) for name in names}
