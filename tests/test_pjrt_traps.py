"""What ends a process, or corrupts it silently, when jaxlib is called as it comes.

Each test does, in a process of its own, what was measured to do so, through our adapter: it must
end with exit code 0 (or the one it asserts) and say what is asserted here.
"""

import importlib.util
from functools import partial

import pytest

from tests.forked_process import output, python
from tests.fresh_process import output as fresh_output
from tests.fresh_process import python as fresh_python
from tpu_kernels.backend import pjrt_choice

FRESH = """
import numpy as np
from tpu_kernels.backend import pjrt
"""
PRELUDE = """
import os, sys

def addition(kind, alias=""):
    t = f"tensor<{kind}>"
    return (f"module {{ func.func public @main(%a: {t}{alias}, %b: {t}) -> {t} "
            f"{{ %0 = stablehlo.add %a, %b : {t} return %0 : {t} }} }}")

def refused(call, *args):
    try:
        print(call(*args))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""
# A forked process with two CPU devices: what it printed.
said = partial(output, TPU_KERNELS_CPU_DEVICES="2")

# Watches for imports of jax, and lets them happen.
WATCH = """
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "jax":
            print("IMPORT", name)

sys.meta_path.insert(0, Watch())
"""


def test_nothing_imports_jax():
    """Trap 1: some jaxlib calls import jax behind the caller's back."""
    assert importlib.util.find_spec("jax"), "without jax installed this test shows nothing"
    text = (
        WATCH
        + FRESH
        + PRELUDE
        + """
c = pjrt.client()
alias = " {tf.aliasing_output = 0 : i32}"
one, other = (c.put(np.ones(4, np.float32), 0) for _ in range(2))
program = c.compile(addition("4xf32", alias), 0)
result = pjrt.consume_with_handlers(program.execute_sharded([one, other]), program.handlers)[0]
pjrt.block_until_ready(result), pjrt.is_ready(result), c.host_pointer(result)
print(c.to_host(c.copy_to_device(result, 1)), c.index_of(result), one.is_deleted())
from tpu_kernels.backend import pjrt_jaxlib
print(len(pjrt_jaxlib.serialize(program.loaded)) > 1000, pjrt_jaxlib.hlo_text(program.loaded)[:9])
print(c.device_description(1).kind, "jax" in sys.modules)
pjrt.shutdown()
"""
    )
    assert fresh_output(text, TPU_KERNELS_CPU="1", TPU_KERNELS_CPU_DEVICES="2").splitlines() == [
        "[2. 2. 2. 2.] 0 True",
        "True HloModule",
        "cpu False",
    ]


def test_an_operand_on_another_device():
    """Trap 2: SIGABRT in the call."""
    text = (
        PRELUDE
        + """
c = pjrt.client()
program = c.compile(addition("4xf32"), 0)
there = c.put(np.ones(4, np.float32), 1)
here = c.put(np.ones(4, np.float32), 0)
refused(program, [here, there])
refused(c.compile(addition("4xf32"), 1), [there, here])
print(c.to_host(program([here, c.copy_to_device(there, 0)])[0]))
print(c.to_host(c.compile(addition("4xf32"), 1)([there, there])[0]))
"""
    )
    assert said(text).splitlines() == [
        "ValueError: operand 1 is on tpu:1, the program runs on tpu:0: copy it there first",
        "ValueError: operand 1 is on tpu:0, the program runs on tpu:1: copy it there first",
        "[2. 2. 2. 2.]",
        "[2. 2. 2. 2.]",
    ]


def test_an_operand_of_another_dtype_or_rank_and_equal_bytes():
    """Trap 3: the bytes are read as what the program expects."""
    text = (
        PRELUDE
        + """
c = pjrt.client()
program = c.compile(addition("4xf32"), 0)
good = c.put(np.ones(4, np.float32), 0)
for array in np.ones(4, np.int32), np.ones((2, 2), np.float32), np.ones(2, np.float64):
    refused(program, [good, c.put(array, 0)])
refused(c.put, np.ones(4, ">f4"), 0)
"""
    )
    lines = said(text).splitlines()
    assert lines[:3] == [
        "TypeError: operand 1 is int32[4], the program takes float32[4]",
        "TypeError: operand 1 is float32[2, 2], the program takes float32[4]",
        "TypeError: operand 1 is float64[2], the program takes float32[4]",
    ]
    assert lines[3].startswith("Unsupported: put: numpy dtype >f4; convert it to one of bool, ")


def test_copies_between_devices():
    """Trap 4: SIGSEGV in a copy that donates its input."""
    text = (
        PRELUDE
        + """
c = pjrt.client()
alias = " {tf.aliasing_output = 0 : i32}"
value = c.put(np.arange(1 << 16, dtype=np.float32), 0)
copies = [c.copy_to_device(value, i % 2) for i in range(8)]
c.compile(addition("65536xf32", alias), 0)([value, copies[0]])
del value
print({float(c.to_host(copy).sum()) for copy in copies}, [c.index_of(v) for v in copies[:2]])
"""
    )
    assert said(text).splitlines() == ["{2147450880.0} [0, 1]"]


CALLBACK = """
from tpu_kernels.backend import cache
text = '''module { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%a)
      {api_version = 4 : i32, backend_config = {index = 0 : ui64}}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32> } }'''
stored = []
cache.store = lambda key, blob: stored.append(key)
c = pjrt.client()
stored.clear()
refused(c.compile, text, 0)
double = lambda x: (np.asarray(x) * 2,)
program = c.compile(text, 0, host_callbacks=[double])
print(c.to_host(program([c.put(np.ones(4, np.float32), 0)])[0]), len(stored))
c.compile(addition("4xf32"), 0, {"xla_llvm_disable_expensive_passes": True})
print(len(stored), "jax" in sys.modules)
"""


def test_programs_that_call_python_back(tmp_path):
    """Trap 5: SIGSEGV when such a program runs after a trip through a cache."""
    lines = said(PRELUDE + CALLBACK, TPU_KERNELS_CACHE_DIR=str(tmp_path)).splitlines()
    assert lines == [
        "Unsupported: compile: the program calls Python back, and no callbacks were given; "
        "pass the host_callbacks it was lowered with, which must outlive it",
        "[2. 2. 2. 2.] 0",
        "1 False",
    ]


def test_damaged_executables_in_the_cache(tmp_path):
    """Trap 6: a flipped bit, or another version's machine code, runs unchecked."""
    text = (
        PRELUDE
        + """
from tpu_kernels.backend import cache
c = pjrt.client()
program = c.compile(addition("4xf32"), 0)
value = c.put(np.ones(4, np.float32), 0)
print(c.to_host(program([value, value])[0]), cache.info().hits, c.compiles, cache.info().rejected)
"""
    )
    cached = partial(said, text, TPU_KERNELS_CACHE_DIR=str(tmp_path))
    assert cached().split()[-3:] == ["0", "1", "0"]
    assert cached().split()[-3:] == ["2", "0", "0"]
    entries = sorted(tmp_path.rglob("*.pjrt"))
    assert len(entries) == 2  # the self-test's and ours
    for entry in entries:
        damaged = bytearray(entry.read_bytes())
        damaged[-100] ^= 1
        entry.write_bytes(damaged)
    assert cached().splitlines() == ["[2. 2. 2. 2.] 0 1 2"]


HOLDER = """
import os, sys, time
from pathlib import Path
from tpu_kernels.backend import pjrt_choice, pjrt_jaxlib
try:
    pjrt_jaxlib.open_plugin("tpu", pjrt_choice.libtpu_path())
except pjrt_jaxlib.JaxRuntimeError as error:
    # Another process of this machine has libtpu open: the lock is held all the same.
    assert "lockfile" in str(error) or "in use" in str(error), error
child = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", sys.argv[1]])
sys.exit(child)
"""


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_a_chip_that_another_process_holds():
    """Trap 9: libtpu's lock file."""
    second = FRESH + PRELUDE + "refused(pjrt.client)\nprint('alive')"
    done = fresh_python(
        f"import sys\nsys.argv.append({second!r})\n" + HOLDER,
        TPU_LIBRARY_PATH=str(pjrt_choice.libtpu_path()),
        TPU_SKIP_MDS_QUERY="1",
    )
    assert done.returncode == 0, done.stderr
    told, alive = done.stdout.splitlines()
    assert told.startswith("RuntimeError: the TPU is in use by another process: only one process")
    assert "`sudo lsof /dev/accel* /dev/vfio/*`" in told and "TPU_KERNELS_CPU=1" in told
    assert alive == "alive"


def test_programs_whose_hlo_cannot_be_printed():
    """Trap 10: with a plugin newer than jaxlib, reading the HLO raises; nothing needs it."""
    text = (
        PRELUDE
        + """
from tpu_kernels.backend import pjrt_jaxlib
def unreadable(self):
    raise pjrt_jaxlib.JaxRuntimeError("INVALID_ARGUMENT: async-update has unknown operands")
c = pjrt.client()
program = c.compile(addition("4xf32"), 0)
type(program.loaded).hlo_modules = unreadable
program = c.compile(addition("5xf32"), 0)
value = c.put(np.ones(5, np.float32), 0)
print(c.to_host(program([value, value])[0]), repr(pjrt_jaxlib.hlo_text(program.loaded)))
print(pjrt_jaxlib.memory_analysis(program.loaded)["argument_size"])
"""
    )
    assert said(text).splitlines() == ["[2. 2. 2. 2. 2.] ''", "40"]


def test_a_forked_child():
    """XLA's threads do not exist in a forked child: it would wait for them for ever."""
    text = (
        PRELUDE
        + """
client = pjrt.client()
if (child := os.fork()) == 0:
    refused(pjrt.client)
    print(pjrt.device_count(), flush=True)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), pjrt.client() is client)
"""
    )
    assert said(text).splitlines() == [
        "RuntimeError: the tpu device was started in the parent process and cannot be used in a "
        "forked child: start the child with multiprocessing.get_context('spawn')",
        "2",
        "7 True",
    ]


def test_fork_before_first_use():
    text = (
        PRELUDE
        + """
if (child := os.fork()) == 0:
    c = pjrt.client()
    print(c.to_host(c.put(np.ones(2), 0)), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(pjrt.client().devices))
"""
    )
    assert said(text).splitlines() == ["[1. 1.]", "0 2"]


MISMATCH = """
try:
    from tpu_kernels.backend import pjrt
    pjrt.client()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def is_version_mismatch(told: str, step: str) -> bool:
    return (
        told.startswith("VersionMismatch: jaxlib ")
        and "libtpu " in told
        and " and torch " in told
        and f"do not work together: {step} failed with " in told
        and "A set known to work: jaxlib 0.10.2, libtpu 0.0.42.1, torch 2.13.0." in told
    )


def test_a_jaxlib_without_what_is_needed():
    """Case D69: what was found and what is known to work, before anything runs on it."""
    told = fresh_output("from jaxlib import _jax\ndel _jax.batched_device_put" + MISMATCH)
    assert is_version_mismatch(told, "importing jaxlib"), told


@pytest.mark.parametrize(
    "change, step",
    [
        ("pjrt_jaxlib.result_handler = None", "compiling an addition"),
        ("pjrt_jaxlib.device_of = None", "running it"),
        ("pjrt_jaxlib.host_pointer = lambda value: ZEROS.ctypes.data", "a copy to the host"),
    ],
)
def test_a_jaxlib_that_does_not_pass_the_self_test(change, step):
    start = "from tpu_kernels.backend import pjrt_jaxlib\nZEROS = np.zeros(4, np.float32)\n"
    told = output(start + change + MISMATCH)
    assert is_version_mismatch(told, step), told


def test_exit_code():
    """Arrays, programs and a client that are alive at exit do not disturb it."""
    text = (
        PRELUDE
        + """
c = pjrt.client()
value, program = c.put(np.ones(4), 0), c.compile(addition("4xf64"), 0)
sys.exit(3)
"""
    )
    done = python(text)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
