"""The lane through a PJRT plugin: the path libtpu takes, with a CPU plugin from the package index.

Each process names the plugin by TPU_LIBRARY_PATH, and fails if its client is the embedded one.
"""

import importlib.util
from pathlib import Path

import pytest

from tests.forked_process import output, python
from tests.fresh_process import output as fresh_output
from tpu_kernels.backend import pjrt_choice

_SPEC = importlib.util.find_spec("lammps_jax_pjrt_cpu")
pytestmark = pytest.mark.skipif(_SPEC is None, reason="needs the package lammps-jax-pjrt-cpu")

START = """
import os, sys
import torch
from tpu_kernels.backend import dtypes
c = pjrt.client()
assert c.is_plugin and c.plugin == os.path.basename(os.environ["TPU_LIBRARY_PATH"]), c.plugin

def addition(kind, alias=""):
    t = f"tensor<{kind}>"
    return (f"module {{ func.func public @main(%a: {t}{alias}, %b: {t}) -> {t} "
            f"{{ %0 = stablehlo.add %a, %b : {t} return %0 : {t} }} }}")

ALIAS = " {tf.aliasing_output = 0 : i32}"
"""


def plugin() -> str:
    assert _SPEC is not None and _SPEC.origin is not None
    return str(Path(_SPEC.origin).with_name("pjrt_c_api_cpu_plugin.so"))


def through_plugin(text: str, cache: str = "") -> str:
    return output(
        START + text, TPU_KERNELS_CACHE_DIR=cache, TPU_KERNELS_CPU="", TPU_LIBRARY_PATH=plugin()
    )


def test_the_client_is_the_plugins():
    text = """
print(c.platform, c.synchronous, len(c.devices) == pjrt.device_count(), "plugin" in c.versions)
print(c.device_description(0), c.memory_stats(0))
"""
    assert through_plugin(text).splitlines() == [
        "cpu False True True",
        "DeviceDescription(name='cpu', kind='cpu', memory=None) {}",
    ]


def test_transfers_and_programs_of_every_dtype():
    text = """
for row in dtypes.TABLE:
    raw = np.random.default_rng(0).bytes(64)
    raw = bytes(byte & 1 for byte in raw) if row.hlo == "i1" else raw
    host = np.frombuffer(raw, row.numpy)
    flat, deep = f"tensor<{len(host)}x{row.hlo}>", f"tensor<1x{len(host)}x{row.hlo}>"
    program = c.compile(
        f"module {{ func.func public @main(%a: {flat}) -> {deep} {{ %0 = stablehlo.reshape %a "
        f": ({flat}) -> {deep} return %0 : {deep} }} }}", 0)
    [result] = program([c.put(host, 0)])
    back = c.to_host(result)
    assert back.dtype == host.dtype and back.tobytes() == host.tobytes(), row
    print(row.hlo)
for host in np.ones((3, 0, 2)), np.array(3.5), np.arange(24.0).reshape(2, 3, 4)[::-1, :, ::2].T:
    assert np.array_equal(c.to_host(c.put(host, 0)), host)
print("jax" in sys.modules)
"""
    assert through_plugin(text).splitlines()[-2:] == ["f8E8M0FNU", "False"]


@pytest.mark.parametrize("count", [16, 1 << 20])
def test_donation_and_host_memory(count):
    text = """
source = torch.ones(COUNT)
assert source.data_ptr() % 64 == 0
program = c.compile(addition("COUNTxf32", ALIAS), 0)
value, one = c.put(source.numpy(), 0), c.put(np.ones(COUNT, np.float32), 0)
source.fill_(7)
for step in range(3):
    host = c.to_host(value)
    old, [value] = value, program([value, one])
    assert old.is_deleted() and (host == step + 1).all()
host[:] = 0
print(set(c.to_host(value).tolist()), set(c.to_host(one).tolist()), set(source.tolist()))
from tpu_kernels.backend import pjrt_jaxlib
print(pjrt_jaxlib.memory_analysis(program.loaded)["alias_size"] == 4 * COUNT)
try:
    c.to_host(old)
except Exception as error:
    print(type(error).__name__)
"""
    said = through_plugin(text.replace("COUNT", str(count))).splitlines()
    assert said == ["{4.0} {1.0} {7.0}", "True", "DonatedTensor"]


def test_results_are_ready_later():
    text = """
n = 700
t = f"tensor<{n}x{n}xf32>"
program = c.compile(
    f"module {{ func.func public @main(%a: {t}) -> {t} {{ %0 = stablehlo.dot_general %a, %a, "
    f"contracting_dims = [1] x [0] : ({t}, {t}) -> {t} return %0 : {t} }} }}", 0)
value = c.put(np.eye(n, dtype=np.float32), 0)
for _ in range(20):
    [value] = program([value])
pjrt.block_until_ready(value)
print(pjrt.is_ready(value), bool((c.to_host(value) == np.eye(n)).all()))
"""
    assert through_plugin(text).splitlines() == ["True True"]


def test_several_devices():
    text = """
last = len(c.devices) - 1
value = c.copy_to_device(c.put(np.arange(4, dtype=np.float32), 0), last)
program = c.compile(addition("4xf32"), last)
print(c.index_of(value) == last, c.to_host(program([value, value])[0]), c.to_host(value))
if last:
    try:
        c.compile(addition("4xf32"), 0)([value, value])
    except ValueError as error:
        print(str(error).replace(str(last), "LAST"))
"""
    assert through_plugin(text).splitlines() == [
        "True [0. 2. 4. 6.] [0. 1. 2. 3.]",
        "operand 0 is on tpu:LAST, the program runs on tpu:0: copy it there first",
    ]


def test_float32_keeps_nan():
    text = """
t = "tensor<20000xf32>"
program = c.compile(
    f"module {{ func.func public @main(%a: {t}) -> (tensor<f32>, {t}) {{ "
    "%low = stablehlo.constant dense<0xFF800000> : tensor<f32> "
    "%0 = stablehlo.reduce(%a init: %low) applies stablehlo.maximum across dimensions = [0] "
    f": ({t}, tensor<f32>) -> tensor<f32> %1 = stablehlo.minimum %a, %a : {t} "
    f"return %0, %1 : tensor<f32>, {t} }} }}", 0)
host = np.ones(20000, np.float32)
host[7] = np.nan
most, least = map(c.to_host, program([c.put(host, 0)]))
print(most, np.isnan(least).sum())
"""
    assert through_plugin(text).splitlines() == ["nan 1"]


def test_executables_are_cached_between_processes(tmp_path):
    text = """
program = c.compile(addition("4xf32"), 1)
value = c.put(np.ones(4, np.float32), 1)
print(c.to_host(program([value, value])[0]), c.compiles)
"""
    assert through_plugin(text, str(tmp_path)) == "[2. 2. 2. 2.] 1\n"
    assert through_plugin(text, str(tmp_path)) == "[2. 2. 2. 2.] 0\n"


def test_host_copies_are_not_kept():
    """A jaxlib array remembers the host copy it once made."""
    text = """
import resource
value = c.put(np.zeros(8 << 20), 0)
c.to_host(value)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(8):
    c.to_host(c.put(np.zeros(8 << 20), 0))
keep = [c.put(np.zeros(8 << 20), 0)]
c.to_host(keep[0])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10)
"""
    assert through_plugin(text) == "True\n"


def test_a_model_trains():
    """The whole device, recorder and all: five steps of SGD with momentum, as on torch's CPU."""
    text = """
import copy
import torch, tpu_kernels
from tpu_kernels.backend import pjrt
from tpu_kernels.testing import assert_close

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
there = copy.deepcopy(model).to("tpu")
assert pjrt.client().is_plugin
x, y = torch.randn(32, 8), torch.randn(32, 4)

def train(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)

assert_close(train(there, x.to("tpu"), y.to("tpu")), train(model, x, y), "FP32_ACCUM")
z = torch.arange(12.0, device="tpu").view(3, 4)
z[:, 1] += 5
print(z.sum().item(), "jax" in sys.modules)
"""
    said = fresh_output("import sys" + text, TPU_LIBRARY_PATH=plugin())
    assert said.splitlines()[-1] == "81.0 False"


class TestPluginsThatDoNotWork:
    START = """
try:
    pjrt.client()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""

    def said(self, library: str) -> str:
        return output(self.START, TPU_KERNELS_CPU="", TPU_LIBRARY_PATH=library)

    def test_no_such_file(self):
        said = self.said("/no/such/plugin.so")
        assert said.startswith("RuntimeError: the PJRT plugin /no/such/plugin.so will not load: ")
        assert "Set TPU_LIBRARY_PATH to a PJRT plugin for this machine, or unset it." in said
        assert "No such file or directory" in said

    def test_not_a_library(self, tmp_path):
        (tmp_path / "plugin.so").write_text("hello")
        assert "the system's loader refused it" in self.said(str(tmp_path / "plugin.so"))

    def test_a_library_that_is_no_plugin(self):
        library = importlib.util.find_spec("_ctypes")
        assert library is not None and library.origin is not None
        assert "but not a PJRT plugin (no GetPjrtApi)" in self.said(library.origin)

    @pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
    @pytest.mark.skipif(bool(list(Path("/dev").glob("accel*"))), reason="there is a chip")
    def test_libtpu_without_a_chip(self):
        done = python(
            self.START,
            timeout=60,
            TPU_KERNELS_CPU="",
            TPU_LIBRARY_PATH=str(pjrt_choice.libtpu_path()),
            ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        )
        assert done.returncode == 0
        assert "libtpu.so loaded but found no device it can use: check that this" in done.stdout
        assert "TPU_KERNELS_CPU=1 to run on the CPU" in done.stdout
