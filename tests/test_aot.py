"""Programs for TPUs that are not here, compiled by libtpu in a process that may die."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tpu_kernels import aot
from tpu_kernels.chips import CHIPS, Chip

pytestmark = pytest.mark.slow

M, K, N = 256, 512, 1024
# x: [m, k] bf16, w: [k, n] bf16, b: [n] bf16 -> gelu(x w + b): [m, n] bf16, f32 inside
MATMUL_GELU = f"""
func.func public @main(%x: tensor<{M}x{K}xbf16>, %w: tensor<{K}x{N}xbf16>, %b: tensor<{N}xbf16>)
    -> tensor<{M}x{N}xbf16> {{
  %xw = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<{M}x{K}xbf16>, tensor<{K}x{N}xbf16>) -> tensor<{M}x{N}xf32>
  %b32 = stablehlo.convert %b : (tensor<{N}xbf16>) -> tensor<{N}xf32>
  %bias = stablehlo.broadcast_in_dim %b32, dims = [1] : (tensor<{N}xf32>) -> tensor<{M}x{N}xf32>
  %y = stablehlo.add %xw, %bias : tensor<{M}x{N}xf32>
  %half = stablehlo.constant dense<0.5> : tensor<{M}x{N}xf32>
  %one = stablehlo.constant dense<1.0> : tensor<{M}x{N}xf32>
  %c0 = stablehlo.constant dense<0.7978845608> : tensor<{M}x{N}xf32>
  %c1 = stablehlo.constant dense<0.044715> : tensor<{M}x{N}xf32>
  %y2 = stablehlo.multiply %y, %y : tensor<{M}x{N}xf32>
  %y3 = stablehlo.multiply %y2, %y : tensor<{M}x{N}xf32>
  %z0 = stablehlo.multiply %y3, %c1 : tensor<{M}x{N}xf32>
  %z1 = stablehlo.add %y, %z0 : tensor<{M}x{N}xf32>
  %z2 = stablehlo.multiply %z1, %c0 : tensor<{M}x{N}xf32>
  %t0 = stablehlo.tanh %z2 : tensor<{M}x{N}xf32>
  %t1 = stablehlo.add %t0, %one : tensor<{M}x{N}xf32>
  %g0 = stablehlo.multiply %t1, %y : tensor<{M}x{N}xf32>
  %g1 = stablehlo.multiply %g0, %half : tensor<{M}x{N}xf32>
  %out = stablehlo.convert %g1 : (tensor<{M}x{N}xf32>) -> tensor<{M}x{N}xbf16>
  return %out : tensor<{M}x{N}xbf16>
}}"""
SMALL = """func.func public @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
  %y = stablehlo.add %x, %x : tensor<8x128xf32>
  return %y : tensor<8x128xf32>
}"""
# 256 GiB in and 256 GiB out
HUGE = SMALL.replace("8x128xf32", "64x1024x1024x1024xf32")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIBTPU_INIT_ARGS", "TPU_LIBRARY_PATH", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ("v5e", "v5p", "v6e", "tpu7x"))
def test_matmul_gelu_compiles(name: str) -> None:
    report = aot.compile(MATMUL_GELU, name)
    assert report.versions["device_kind"] == report.chip.kind == CHIPS[name].kind
    assert len(report.executable) > 10_000
    operands, result = 2 * (M * K + K * N + N), 2 * M * N
    # A bias of one row may be padded to a tile of sixteen.
    assert operands <= report.memory["argument_size"] <= operands + 16 * 2 * N
    assert report.memory["output_size"] == result
    assert operands + result <= report.memory["peak_memory"] < 4 * (operands + result)
    assert 0 < report.memory["generated_code_size"] < 1 << 22
    assert 2 * M * K * N <= report.cost["flops"] < 2.1 * M * K * N
    assert operands + result <= report.cost["bytes accessed"] < 4 * (operands + result)
    assert report.cost["transcendentals"] == M * N
    assert 1e-7 < report.cost["optimal_seconds"] < 1e-4
    assert "ENTRY" in report.hlo
    lines = str(report).splitlines()
    assert lines[0].startswith(f"{name} ({report.chip.kind}), libtpu ")
    assert "arguments 1.25, outputs 0.50, " in lines[1]
    assert lines[2].startswith("compiler's estimate: 0.27")


def _available_gib(chip: Chip) -> float:
    with pytest.raises(aot.AotError) as refused:
        aot.compile(HUGE, chip.name)
    text = str(refused.value)
    assert text.startswith(f"not compiled for {chip.name}: ") and "out of memory" in text
    found = re.search(r"HBM \(([\d.]+)G\)", text)
    assert found, text
    return float(found.group(1))


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_what_does_not_fit_is_refused_with_sizes(chip: Chip) -> None:
    """So is the table: libtpu takes its own share of the published HBM, and little of it."""
    published = chip.device_hbm_bytes / (1 << 30)
    assert 0.95 * published <= _available_gib(chip) <= 1.01 * published


def test_equal_modules_give_equal_bytes_from_any_thread() -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(aot.compile, (SMALL, SMALL))
    assert first.executable == second.executable
    assert first.executable != aot.compile(SMALL.replace("add", "multiply")).executable


def test_refusals_name_the_reason() -> None:
    with pytest.raises(ValueError, match="no TPU generation 'v9': use one of v4, v5e, v5p"):
        aot.compile(SMALL, "v9")
    with pytest.raises(
        aot.AotError, match="not compiled for v5e: not a StableHLO module: (.|\n)*'junk'"
    ):
        aot.compile("junk")
    with pytest.raises(aot.AotError, match="no_such_option"):
        aot.compile(SMALL, options={"no_such_option": True})


def test_options_reach_the_compiler() -> None:
    low, high = (
        aot.compile(SMALL, options={"xla_tpu_scoped_vmem_limit_kib": kib}) for kib in (8192, 65536)
    )
    assert low.executable != high.executable


def test_flags_libtpu_does_not_know_end_only_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--no_such_flag=1")
    with pytest.raises(aot.AotError, match="ended with code 1: (.|\n)*flag 'no_such_flag'"):
        aot.compile(SMALL)
    monkeypatch.delenv("LIBTPU_INIT_ARGS")
    assert aot.compile(SMALL).executable


@pytest.fixture
def bad_libtpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A libtpu that does to its process what BODY says."""
    source = tmp_path / "source.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "void *GetPjrtApi(void) { BODY; return 0; }"
    )
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    yield source


def _build(source: Path, body: str) -> None:
    source.write_text(source.read_text().replace("BODY", body))
    command = ["cc", "-shared", "-fPIC", "-o", str(source.parent / "libtpu.so"), str(source)]
    subprocess.run(command, check=True)


def test_a_compiler_that_aborts_ends_only_its_process(
    bad_libtpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _build(bad_libtpu, r'fputs("F0000 checks.cc:7] it went wrong\nat a place\n", stderr); abort()')
    with pytest.raises(aot.AotError) as died:
        aot.compile(SMALL)
    assert str(died.value) == (
        "not compiled for v5e: the compiler's process died of SIGABRT: "
        "F0000 checks.cc:7] it went wrong\nat a place"
    )
    monkeypatch.delenv("TPU_LIBRARY_PATH")
    assert aot.compile(SMALL).executable


def test_a_compiler_that_hangs_is_ended(bad_libtpu: Path) -> None:
    _build(bad_libtpu, "for (;;) pause()")
    with pytest.raises(aot.AotError, match="not compiled for v5e: it took more than 0.5 s"):
        aot.compile(SMALL, timeout=0.5)


def test_a_worker_that_was_killed_is_started_again() -> None:
    aot.compile(SMALL)
    process = aot._worker._process
    assert process
    process.kill()
    process.wait()
    with pytest.raises(aot.AotError, match="died of SIGKILL"):
        aot.compile(SMALL)
    assert aot.compile(SMALL).executable


def test_another_process_may_hold_libtpu() -> None:
    """libtpu refuses a second process on a machine, unless told that this one wants no chip."""
    holding = """
import sys
from tpu_kernels.backend import pjrt_choice, pjrt_jaxlib
pjrt_jaxlib.open_plugin("tpu", pjrt_choice.libtpu_path())
print("holding", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", holding],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TPU_SKIP_MDS_QUERY": "1"},
    )
    with holder:
        assert holder.stdout and holder.stdout.readline() == "holding\n"
        assert aot.compile(SMALL).executable
        assert holder.poll() is None


def test_command_line(tmp_path: Path) -> None:
    module, executable = tmp_path / "small.mlir", tmp_path / "small.bin"
    module.write_text(SMALL)
    command = [sys.executable, "-m", "tpu_kernels.aot", str(module), "--chip", "v6e"]
    ended = subprocess.run([*command, "--output", executable], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("v6e (TPU v6 lite), libtpu ")
    assert executable.stat().st_size > 10_000


def test_command_line_of_a_refused_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "junk.mlir"
    module.write_text("junk")
    monkeypatch.setattr(sys, "argv", ["aot", str(module)])
    assert aot.main() == 1
    assert capsys.readouterr().err.startswith(f"{module}: not compiled for v5e: not a StableHLO")
