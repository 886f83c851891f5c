"""The executable cache under the device: right results whatever became of the files.

Cases D46, D47 and D49 of the collected reports: the second process compiles nothing, flags are in
the key, and nobody has to configure anything.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fresh_process import output, python
from tpu_kernels import cache as public
from tpu_kernels.backend import build, cache_directory, pjrt

# Large enough for threads, so that damage to the code or its constants could show.
PROGRAM = """module {
  func.func public @main(%x: tensor<64x1024xf32>) -> (tensor<64x1024xf32>, tensor<64xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.tanh %x : tensor<64x1024xf32>
    %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1]
        : (tensor<64x1024xf32>, tensor<f32>) -> tensor<64xf32>
    return %y, %s : tensor<64x1024xf32>, tensor<64xf32>
  }
}"""
X = np.linspace(-2, 2, 64 * 1024, dtype=np.float32).reshape(64, 1024)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TPU_KERNELS_CACHE", "TPU_KERNELS_CACHE_BYTES"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "executables"
    monkeypatch.setenv("TPU_KERNELS_CACHE_DIR", str(path))
    monkeypatch.setattr(cache_directory, "_warned", set())
    return path


def run(options: dict[str, object] | None = None) -> int:
    """Load the program, check its results; returns how many programs XLA compiled for it."""
    client = pjrt.client()
    before = client.compiles
    values = client.compile(PROGRAM, 0, options or {})([client.put(X, 0)])
    y, s = (client.to_host(value) for value in values)
    np.testing.assert_allclose(y, np.tanh(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(s, np.tanh(X).sum(1), rtol=1e-4, atol=1e-3)
    return client.compiles - before


def entry(directory: Path) -> Path:
    (only,) = directory.glob("*/*.pjrt")
    return only


def test_a_program_is_compiled_once() -> None:
    assert [run(), run(), run()] == [1, 0, 0]


@pytest.mark.parametrize("at", (2, 40, 1000, -1000, -1))
def test_a_flipped_bit_costs_a_compile_and_no_more(
    directory: Path, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    run()
    content = bytearray(entry(directory).read_bytes())
    content[at] ^= 1
    entry(directory).write_bytes(content)
    assert [run(), run()] == [1, 0]
    assert caplog.text.count("is removed and its program compiled again") == 1


def test_an_entry_that_xla_refuses_costs_a_compile(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Undamaged, but not an executable of this XLA."""
    serialize = pjrt.jaxlib.serialize
    monkeypatch.setattr(pjrt.jaxlib, "serialize", lambda loaded: b"an executable of another kind")
    run()
    monkeypatch.setattr(pjrt.jaxlib, "serialize", serialize)
    assert [run(), run()] == [1, 0]
    assert "is removed and its program compiled again" in caplog.text


def test_without_a_place_everything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TPU_KERNELS_CACHE_DIR", "/proc/executables")
    assert [run(), run()] == [1, 1]
    assert caplog.text.count("not kept in /proc/executables") == 1
    monkeypatch.setenv("TPU_KERNELS_CACHE", "0")
    assert [run(), run()] == [1, 1]


def test_options_are_in_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tpu_kernels.cache")
    option = "xla_cpu_enable_fast_math"
    assert [run(), run({option: True}), run({option: True}), run()] == [1, 1, 0, 0]
    assert f"miss: options: option {option} None -> True" in caplog.text


# Eight processes that have started no client yet: they meet an empty directory, then a full one,
# which was filled from another device.
EIGHT = """
import os, sys
sys.path.insert(0, "tests")
from test_cache_device import run_on_last_device
parent = os.getpid()
for devices in (1, 3):
    os.environ["TPU_KERNELS_CPU_DEVICES"] = str(devices)
    children = [os.fork() for _ in range(8) if os.getpid() == parent]
    if os.getpid() != parent:
        os._exit(run_on_last_device())
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def run_on_last_device() -> int:
    """Load the program there; returns how many programs XLA compiled in this process."""
    client, last = pjrt.client(), pjrt.device_count() - 1
    y = client.compile(PROGRAM, last)([client.put(X, last)])[0]
    np.testing.assert_allclose(client.to_host(y), np.tanh(X), rtol=1e-5, atol=1e-6)
    return client.compiles


def test_eight_processes_at_once(directory: Path) -> None:
    cold, warm = output(EIGHT, TPU_KERNELS_CACHE_DIR=str(directory)).splitlines()
    assert max(json.loads(cold)) in (1, 2)  # the client's self-test is a program too
    assert json.loads(warm) == [0] * 8


TRAINING = """
import torch, tpu_kernels
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
model, x, y = model.to("tpu"), torch.randn(16, 64).to("tpu"), torch.randn(16, 10).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), torch.tpu.stats().compiles)
"""


def test_D46_D49_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """With nothing set, but where the user's cache is; a built core is left where it is."""

    def train() -> tuple[float, int, str]:
        core = str(build.cache_directory())
        home = str(tmp_path)
        ended = python(
            TRAINING, XDG_CACHE_HOME=home, TPU_KERNELS_CORE_DIR=core, TPU_KERNELS_CACHE_DIR=""
        )
        assert ended.returncode == 0, ended.stderr
        loss, compiles = ended.stdout.split()
        return float(loss), int(compiles), ended.stderr

    loss, compiles, _ = train()
    assert compiles > 5
    assert train()[:2] == (loss, 0)
    stored = list(tmp_path.glob("tpu_kernels/executables/*/*.pjrt"))
    assert len(stored) >= compiles
    for path in stored:
        content = bytearray(path.read_bytes())
        content[-len(content) // 3] ^= 4
        path.write_bytes(content)
    *result, log = train()
    assert result == [loss, compiles]
    assert log.count("its checksum does not match") >= compiles


def test_D47_options_and_the_chip_are_in_the_key(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tpu_kernels.cache")
    tpu = torch.get_device_module("tpu")
    x = torch.linspace(0, 1, 1537).to("tpu")

    def compiles() -> int:
        before = tpu.stats().compiles
        torch.testing.assert_close(x.sinh().cpu(), x.cpu().sinh())
        return tpu.stats().compiles - before

    with tpu.compiler.custom_compiler_options({"xla_cpu_enable_fast_math": True}):
        assert compiles() == 1
    assert compiles() == 1
    assert "miss: options: option xla_cpu_enable_fast_math True -> None" in caplog.text
    assert compiles() == 0
    with pytest.warns(UserWarning, match="xla_tpu_scoped_vmem_limit_kib is ignored on cpu"):
        with tpu.compiler.custom_compiler_options({"xla_tpu_scoped_vmem_limit_kib": 65536}):
            assert compiles() == 0
    fields = pjrt.cache.key(PROGRAM, {}, pjrt.client().versions)
    assert fields and {"device_kind", "jaxlib", "XLA_FLAGS", "processor"} <= {*fields.fields}


def test_D49_there_is_a_way_to_clear_it_and_a_bound(directory: Path) -> None:
    run()
    state = public.info()
    assert state.directory == str(directory) and state.entries == 1
    assert state.bytes == entry(directory).stat().st_size < state.limit
    assert public.clear() == 1
    assert run() == 1
