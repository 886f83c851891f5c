"""The recorder and the device's plumbing: what compiles, what is held, how processes end."""

from __future__ import annotations

import gc
import io
import pickle
import threading
from collections.abc import Callable

import pytest
import torch

from tests.fresh_process import output, python
from tpu_kernels import tpu

DEV = "tpu"


def new_programs(function: Callable[[], object]) -> int:
    """Programs made while a function runs."""
    before = tpu.stats().misses
    function()
    return tpu.stats().misses - before


# What is part of a program's key, and what is an operand.


def test_distinct_rows_and_minibatches_share_programs() -> None:
    x = torch.arange(4000.0, device=DEV).view(1000, 4)

    def rows() -> None:
        for i in range(1000):
            y = x[i] + 1.0
        assert y.tolist() == [3997, 3998, 3999, 4000]

    def batches() -> None:
        for i in range(0, 1000, 8):
            y = x[i : i + 8] * 2
        assert y[-1].tolist() == [7992, 7994, 7996, 7998]

    assert new_programs(rows) <= 2
    assert new_programs(batches) <= 2


def test_writes_at_distinct_offsets_share_a_program() -> None:
    x = torch.zeros(100, 3, device=DEV)

    def write() -> None:
        for i in range(100):
            x[i] += float(i)

    assert new_programs(write) <= 2
    assert torch.equal(x.cpu(), torch.arange(100.0)[:, None].expand(100, 3))


@pytest.mark.parametrize("foreach", [False, True])
def test_learning_rate_and_step_count_compile_nothing(foreach: bool) -> None:
    w = torch.ones(5, device=DEV, requires_grad=True)
    optimizer = torch.optim.AdamW([w], lr=0.1, foreach=foreach)

    def step(lr: float) -> None:
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()

    for lr in (0.1, 0.2, 0.3):
        step(lr)

    def more() -> None:
        for i in range(10):
            step(0.4 + i / 7)

    assert new_programs(more) == 0


def test_python_scalars_are_operands() -> None:
    x = torch.ones(3, device=DEV)
    y = x * 0.5 + 1.5
    assert new_programs(lambda: [x * float(i) + i / 3 for i in range(2, 50)]) == 0
    assert y.tolist() == [2, 2, 2]


def test_integers_beyond_double_are_exact() -> None:
    x = torch.tensor([1], device=DEV)
    big = 2**60 + 1
    assert (x + big).item() == 1 + big
    assert (x * torch.tensor(big)).item() == big


def test_statistics_count() -> None:
    x = torch.ones(7, device=DEV)
    _ = x.sin()
    before = tpu.stats()
    for _ in range(5):
        x.sin()
    after = tpu.stats()
    assert after.recorded - before.recorded == 5
    assert after.executions - before.executions == 5
    assert after.hits - before.hits == 5
    assert after.misses == before.misses and after.compiles == before.compiles
    x.cpu()
    assert tpu.stats().transfers == after.transfers + 1


# Memory.


def test_memory_is_accounted() -> None:
    gc.collect()
    tpu.empty_cache()
    before = tpu.memory_allocated()
    x = torch.ones(1024, 256, device=DEV)
    assert tpu.memory_allocated() - before == 1 << 20
    tpu.reset_peak_memory_stats()
    y = x + 1
    del x
    assert tpu.memory_allocated() - before == 1 << 20
    assert tpu.max_memory_allocated() - before == 2 << 20
    assert torch.accelerator.memory_allocated() == tpu.memory_allocated()
    del y
    assert tpu.memory_allocated() == before


def test_an_optimizer_step_updates_in_place() -> None:
    w = torch.ones(1024, 256, device=DEV, requires_grad=True)
    w.grad = torch.ones_like(w)
    optimizer = torch.optim.SGD([w], lr=0.1, foreach=False)
    for _ in range(2):
        optimizer.step()
    tpu.empty_cache()
    before = tpu.memory_allocated()
    tpu.reset_peak_memory_stats()
    optimizer.step()
    assert tpu.max_memory_allocated() == before
    assert w[0, 0].item() == pytest.approx(0.7)


def test_memory_is_steady() -> None:
    x = torch.ones(64, device=DEV)
    for i in range(300):
        x = x * 1.0 + float(i % 3)
    tpu.empty_cache()
    before, programs = tpu.memory_allocated(), tpu.stats().programs
    for i in range(300):
        x = x * 1.0 + float(i % 3)
    tpu.empty_cache()
    assert tpu.memory_allocated() == before
    assert tpu.stats().programs == programs


def test_addresses_are_unique_while_they_live_and_come_back_after() -> None:
    tensors = [torch.empty(100, device=DEV) for _ in range(50)]
    addresses = {t.data_ptr() for t in tensors}
    assert len(addresses) == 50
    assert tensors[0][1].data_ptr() - tensors[0].data_ptr() == 4
    del tensors
    again = {torch.empty(100, device=DEV).data_ptr() for _ in range(2000)}
    assert len(again) < 1000  # far fewer than if every allocation took a new range


def test_out_of_memory_gives_sizes() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="1125899906842624 bytes"):
        torch.empty(1 << 48, device=DEV)


def test_limited_address_space() -> None:
    text = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
        import torch, tpu_kernels
        print((torch.ones(3, device="tpu") + 1).tolist())
    """
    assert output(text, TPU_KERNELS_CPU="1").strip() == "[2.0, 2.0, 2.0]"


# Storages.


def test_storage_resize_keeps_contents() -> None:
    x = torch.arange(4.0, device=DEV)
    x.resize_(6)
    assert x[:4].tolist() == [0, 1, 2, 3]
    x.untyped_storage().resize_(8)
    assert x.untyped_storage().nbytes() == 8
    x.resize_(2)
    assert x.tolist() == [0, 1]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


def test_copies_between_devices_and_layouts() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    for moved in (x, x.transpose(0, 2), x[:, 1:], x[..., ::2], x[1, 2, 3], x[:0]):
        there = moved.to(DEV)
        assert there.shape == moved.shape and torch.equal(there.cpu(), moved)
        assert torch.equal((there + 1).cpu(), moved + 1)
    target = torch.zeros(4, 3, 2, device=DEV)
    target.transpose(0, 2).copy_(x)
    assert torch.equal(target.cpu(), x.transpose(0, 2))


def test_pinned_memory() -> None:
    host = torch.ones(1000).pin_memory()
    assert host.is_pinned() and not torch.ones(3).is_pinned()
    assert host.to(DEV, non_blocking=True).sum().item() == 1000


# Random numbers, streams, events.


def test_generator_state_is_seed_and_offset() -> None:
    torch.manual_seed(5)
    state = tpu.get_rng_state()
    first = torch.rand(10, device=DEV)
    second = torch.rand(10, device=DEV)
    assert not torch.equal(first.cpu(), second.cpu())
    tpu.set_rng_state(state)
    assert torch.equal(torch.rand(10, device=DEV).cpu(), first.cpu())
    generator = torch.Generator(DEV).manual_seed(5)
    assert torch.equal(torch.rand(10, device=DEV, generator=generator).cpu(), first.cpu())
    clone = generator.clone_state()
    ours = torch.rand(3, device=DEV, generator=generator)
    assert torch.equal(ours.cpu(), torch.rand(3, device=DEV, generator=clone).cpu())
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator"):
        torch.empty(3, device=DEV).normal_(generator=torch.Generator())


def test_drawing_compiles_once() -> None:
    torch.randn(33, device=DEV)
    assert new_programs(lambda: [torch.randn(33, device=DEV) for _ in range(5)]) == 0


def test_streams_and_events() -> None:
    stream = torch.Stream(DEV)
    begin, end = (tpu.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with stream:
        assert tpu.current_stream() == stream
        x = torch.ones(1000, 100, device=DEV).cumsum(0)
    end.record(stream)
    stream.synchronize()
    end.synchronize()
    assert end.query() and stream.query()
    assert begin.elapsed_time(end) > 0
    assert tpu.current_stream() != stream
    assert x[-1, 0].item() == 1000
    assert isinstance(end, tpu.Event) and isinstance(stream, tpu.Stream)


# Threads and processes.


def test_threads_record_and_differentiate() -> None:
    sums: dict[int, float] = {}

    def work(i: int) -> None:
        w = torch.ones(4, 4, device=DEV, requires_grad=True)
        for k in range(20):
            (w * (k % 3 + i)).sum().backward()
        assert w.grad is not None
        sums[i] = w.grad.sum().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sums == {i: 16.0 * sum(k % 3 + i for k in range(20)) for i in range(5)}


EXITS = {
    "tensors alive": "x = torch.ones(3, device='tpu'); e = torch.Event('tpu'); e.record()",
    "a thread recording": """
def work():
    x = torch.ones(32, 32, device="tpu")
    while True:
        x = x @ x * 0.01
import threading, time
threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)""",
    "an exception": "x = torch.ones(3, device='tpu'); sys.exit(0)",
    "a backward": "w = torch.ones(2, device='tpu', requires_grad=True); (w * w).sum().backward()",
    "a finalizer that computes": """
class A:
    def __init__(self):
        self.x = torch.ones(3, device="tpu")
    def __del__(self):
        self.x.add_(1)
a = A(); (a.x + 1).add_(1); del a; b = A()""",
    "a forked child": """
import os
x = torch.ones(3, device="tpu")
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0""",
}


@pytest.mark.slow
@pytest.mark.parametrize("state", EXITS)
def test_exit_is_clean_with(state: str) -> None:
    text = "import sys, torch, tpu_kernels\n" + EXITS[state] + "\nprint('done')\n"
    done = python(text, TPU_KERNELS_CPU="1")
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr


@pytest.mark.slow
def test_loader_workers_fork() -> None:
    text = """
        import torch, tpu_kernels
        from torch.utils.data import DataLoader, TensorDataset
        total = torch.zeros((), device="tpu")
        data = TensorDataset(torch.arange(16.0))
        for (batch,) in DataLoader(data, batch_size=4, num_workers=2, pin_memory=True):
            total += batch.to("tpu", non_blocking=True).sum()
        print(total.item())
    """
    assert output(text, timeout=300, TPU_KERNELS_CPU="1").strip() == "120.0"


@pytest.mark.slow
def test_several_devices() -> None:
    text = """
        import torch, tpu_kernels
        a = torch.ones(3, device="tpu:1")
        assert (a + 1).device == torch.device("tpu:1")
        assert a.to("tpu:0").device.index == 0 and a.to("tpu:0").tolist() == [1, 1, 1]
        assert torch.randn(2, device="tpu:2").device.index == 2
        with torch.tpu.device(1):
            assert torch.ones(1, device="tpu").device.index == 1
        for place in ("tpu:0", "tpu:7"):
            try:
                a + torch.ones(3, device=place)
            except RuntimeError as error:
                print(error)
    """
    said = output(text, TPU_KERNELS_CPU="1", TPU_KERNELS_CPU_DEVICES="3").splitlines()
    assert "found at least two devices, tpu:1 and tpu:0" in said[0]
    assert "invalid device ordinal tpu:7; this process has 3 tpu device(s)" in said[1]


def test_no_jax() -> None:
    text = """
        import sys, torch, tpu_kernels
        x = torch.randn(5, 5, device="tpu", requires_grad=True)
        (x @ x).relu().sum().backward()
        print([name for name in sys.modules if name == "jax" or name.startswith("jax.")])
    """
    assert output(text, TPU_KERNELS_CPU="1").strip() == "[]"


# Storages that torch makes around our addresses.


def test_pickle_and_legacy_save_keep_values() -> None:
    x = torch.arange(6.0, device=DEV).reshape(2, 3)
    assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())
    file = io.BytesIO()
    torch.save(x.t(), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    back = torch.load(file)
    assert back.device.type == DEV and back.stride() == (1, 3)
    assert torch.equal(back.cpu(), x.t().cpu())


def test_dlpack_shares_or_refuses() -> None:
    x = torch.arange(6.0, device=DEV).reshape(2, 3)
    same = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    same[0, 0] = 9
    assert x[0, 0].item() == 9
    with pytest.raises(RuntimeError, match="a storage that the device did not allocate"):
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x[1])) + 1


def test_a_generator_of_another_device_is_refused() -> None:
    text = """
        import torch, tpu_kernels
        try:
            torch.rand(2, device="tpu:0", generator=torch.Generator("tpu:1"))
        except RuntimeError as error:
            print(error)
    """
    said = output(text, TPU_KERNELS_CPU="1", TPU_KERNELS_CPU_DEVICES="2")
    assert "Expected a generator of tpu:0 but found one of tpu:1" in said
