"""What a user of torch on the CPU sees: prints {probe: outcome} as JSON.

test_cpu_unchanged.py runs it with the device registered and without, and compares. An outcome is
the repr of what a probe returns, or the error it raises, with the warnings it gave.
"""

from __future__ import annotations

import copy
import io
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PROBES: dict[str, Callable[[], object]] = {}


def probe(function: Callable[[], object]) -> Callable[[], object]:
    PROBES[function.__name__] = function
    return function


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))


def gradients(module: nn.Module) -> list[float]:
    return [round(p.grad.sum().item(), 4) for p in module.parameters() if p.grad is not None]


for name in """is_available device_count current_accelerator current_device_index current_stream
        synchronize empty_cache memory_stats memory_allocated max_memory_allocated""".split():
    PROBES[f"accelerator.{name}"] = getattr(torch.accelerator, name)


@probe
def accelerator_current_if_available() -> object:
    return torch.accelerator.current_accelerator(check_available=True)


@probe
def device_of_an_index() -> object:
    return torch.device(0)


@probe
def cuda() -> object:
    return torch.cuda.is_available(), torch.cuda.device_count()


@probe
def module_to_cuda() -> object:
    return model().cuda()


@probe
def pinned_tensor() -> object:
    return torch.ones(2).pin_memory().is_pinned()


@probe
def pinned_empty() -> object:
    return torch.empty(2, pin_memory=True).is_pinned()


@probe
def is_pinned() -> object:
    return torch.ones(2).is_pinned()


def batches(**options: object) -> list:
    data = TensorDataset(torch.arange(6.0), torch.arange(6))
    loader = DataLoader(data, batch_size=4, **options)  # type: ignore[arg-type]
    return [[(x.tolist(), x.is_pinned(), str(x.device)) for x in batch] for batch in loader]


@probe
def loader_plain() -> object:
    return batches()


@probe
def loader_pinning() -> object:
    return batches(pin_memory=True)


@probe
def loader_forked_workers() -> object:
    return batches(num_workers=2, multiprocessing_context="fork")


@probe
def loader_spawned_pinning_workers() -> object:
    return batches(num_workers=1, pin_memory=True, multiprocessing_context="spawn")


@probe
def backward_threads() -> object:
    """The engine starts a thread for each device it knows of."""
    module = model()
    module(torch.ones(3, 4)).sum().backward()
    return gradients(module), len(os.listdir("/proc/self/task"))


@probe
def backward_in_a_thread() -> object:
    module = model()
    thread = threading.Thread(target=lambda: module(torch.ones(3, 4)).sum().backward())
    thread.start()
    thread.join()
    return gradients(module)


def checkpointed(reentrant: bool) -> object:
    module = model()
    x = torch.ones(3, 4, requires_grad=True)
    torch.utils.checkpoint.checkpoint(module, x, use_reentrant=reentrant).sum().backward()
    return gradients(module)


@probe
def checkpoint() -> object:
    return checkpointed(False)


@probe
def checkpoint_reentrant() -> object:
    return checkpointed(True)


@probe
def checkpoint_device_type() -> object:
    return torch.utils.checkpoint.DefaultDeviceType.get_device_type()


def compiled(backend: str) -> object:
    module = model().eval()
    run = torch.compile(module, backend=backend, fullgraph=True)
    run(torch.ones(3, 4)).sum().backward()
    return gradients(module)


@probe
def compile_eager() -> object:
    return compiled("eager")


@probe
def compile_aot_eager() -> object:
    return compiled("aot_eager")


@probe
def export() -> object:
    program = torch.export.export(model().eval(), (torch.ones(3, 4),))
    return str(program.graph)


@probe
def save_and_load() -> object:
    file = io.BytesIO()
    torch.save({"x": torch.arange(6.0).view(2, 3).t(), "model": model().state_dict()}, file)
    again = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    return again["x"].stride(), len(file.getvalue()), sorted(again["model"])


@probe
def load_whole_module() -> object:
    file = io.BytesIO()
    torch.save(model(), file)
    file.seek(0)
    return str(torch.load(file, weights_only=False))


@probe
def load_to_a_missing_device() -> object:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    return torch.load(file, map_location="cuda")


@probe
def deepcopy() -> object:
    return str(copy.deepcopy(model()))


@probe
def seeds() -> object:
    torch.manual_seed(3)
    with torch.random.fork_rng():
        torch.rand(2)
    return torch.rand(2).tolist(), torch.initial_seed(), str(torch.Generator().device)


@probe
def autocast() -> object:
    with torch.autocast("cpu"):
        return str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)


@probe
def grad_scaler() -> object:
    return torch.amp.GradScaler().is_enabled()


@probe
def train() -> object:
    module = model()
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(module(torch.ones(3, 4)), torch.zeros(3, 2)).backward()
        optimizer.step()
    return [round(p.sum().item(), 4) for p in module.parameters()]


@probe
def profiler() -> object:
    with torch.profiler.profile() as profile:
        torch.ones(2) + 1
    return sorted({event.key for event in profile.key_averages()})


@probe
def profiler_activities() -> object:
    return sorted(map(str, torch.profiler.supported_activities()))


@probe
def process_group() -> object:
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            x = torch.ones(2)
            dist.all_reduce(x)
            return x.tolist(), dist.get_backend()
        finally:
            dist.destroy_process_group()


def double(queue: object, x: torch.Tensor) -> None:
    x.mul_(2)


@probe
def tensors_between_processes() -> object:
    x = torch.ones(2).share_memory_()
    torch.multiprocessing.spawn(double, args=(x,), nprocs=1)
    return x.tolist()


@probe
def default_device() -> object:
    return torch.get_default_device(), torch.ones(1).device


@probe
def numpy_and_dlpack() -> object:
    x = torch.arange(3)
    return torch.from_dlpack(x.numpy()).tolist(), str(x.__dlpack_device__())


@probe
def bare_stream() -> object:
    return type(torch.Stream()).__name__


@probe
def bare_event() -> object:
    return type(torch.Event()).__name__


def outcome(function: Callable[[], object]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = repr(function())
        except Exception as error:
            result = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    told = sorted({f"{w.category.__name__}: {str(w.message).splitlines()[0]}" for w in caught})
    return " | ".join([result, *told])


def outcome_in_a_child(function: Callable[[], object]) -> str:
    """No probe sees what another one did: one that asks for the device would start it for all."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    if os.fork() == 0:
        sender.send(outcome(function))
        os._exit(0)
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return "the process ended"
    finally:
        os.wait()


def main() -> None:
    found = {name: outcome_in_a_child(function) for name, function in PROBES.items()}
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
