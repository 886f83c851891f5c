"""Single ops on 16x16 tensors, one after the other: what dispatch and execution cost."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from timing import paired
from torch import Tensor

CHAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "relu": lambda a, b: torch.relu(a),
    "mm": torch.mm,
    "sum": lambda a, b: torch.sum(a),
    "a*2.0": lambda a, b: a * 2.0,
    "add_": lambda a, b: a.add_(b, alpha=1e-9),
}


def chain(a: Tensor, b: Tensor) -> None:
    for op in CHAIN.values():
        op(a, b)


def op_times() -> Iterator[dict[str, object]]:
    """The chain and each op, against torch CPU and in multiples of torch CPU's `torch.add`."""
    host = [torch.randn(16, 16) for _ in range(2)]
    device = [x.to("tpu") for x in host]
    unit = paired(partial(torch.add, *device), partial(torch.add, *host), 500).cpu_us
    whole = paired(partial(chain, *device), partial(chain, *host), 200)
    yield row("chain 16x16", whole.device_us, whole.cpu_us, whole.ratio, unit * len(CHAIN), bar=5.5)
    for name, op in CHAIN.items():
        one = paired(partial(op, *device), partial(op, *host), 500)
        yield row(f"{name} 16x16", one.device_us, one.cpu_us, one.ratio, unit)


def row(
    name: str, device_us: float, cpu_us: float, ratio: float, unit: float, bar: float | None = None
) -> dict[str, object]:
    return {
        "name": name,
        "device_us": device_us,
        "cpu_us": cpu_us,
        "ratio": ratio,
        "torch_adds": device_us / unit,
        "bar": bar,
    }
