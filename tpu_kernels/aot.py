"""Compile StableHLO for a TPU that is not here: does it compile, does it fit, what would it cost.

`python -m tpu_kernels.aot module.mlir --chip v5e` prints a report. libtpu is loaded in a process
of its own, which may die of a program without harm and does not need the chip.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpu_kernels import chips

__all__ = ["AotError", "AotReport", "compile"]

# The worker sees the modules that this process sees, wherever it was started.
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tpu_kernels.backend.aot_worker import serve
serve()
"""
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may hold the chip
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server outside Google Cloud
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
}


class AotError(RuntimeError):
    """A module was not compiled; the text says why, in the compiler's words where it has any."""


@dataclass(frozen=True)
class AotReport:
    """A program compiled for one device of a chip.

    executable: libtpu's serialized form. memory: bytes by kind (argument_size, output_size,
    temp_size, alias_size, generated_code_size, peak_memory). cost: the compiler's estimates
    ("flops", "bytes accessed", "transcendentals", "optimal_seconds"), not measurements; a custom
    call adds nothing to them. hlo: the optimized program, "" where jaxlib cannot print it.
    """

    chip: chips.Chip
    executable: bytes = field(repr=False)
    memory: Mapping[str, int]
    cost: Mapping[str, float]
    versions: Mapping[str, str]
    hlo: str = field(repr=False)
    seconds: float

    def __str__(self) -> str:
        memory, cost, mib = self.memory, self.cost, 1 << 20
        sizes = ", ".join(
            f"{name} {memory.get(kind, 0) / mib:.2f}"
            for name, kind in (
                ("arguments", "argument_size"),
                ("outputs", "output_size"),
                ("temporaries", "temp_size"),
                ("code", "generated_code_size"),
                ("peak", "peak_memory"),
            )
        )
        peak = self.chip.bf16_tflops / self.chip.devices
        return (
            f"{self.chip.name} ({self.chip.kind}), libtpu {self.versions.get('libtpu', '?')}: "
            f"compiled in {self.seconds:.1f} s to {len(self.executable) / mib:.2f} MiB\n"
            f"MiB: {sizes} of {self.chip.device_hbm_bytes / mib:.0f}\n"
            f"compiler's estimate: {cost.get('flops', 0) / 1e9:.3f} GFLOP, "
            f"{cost.get('bytes accessed', 0) / 1e6:.3f} MB moved, "
            f"{cost.get('optimal_seconds', 0) * 1e6:.1f} us "
            f"({cost.get('flops', 0) / peak / 1e6:.1f} us at {peak:g} TFLOP/s)"
        )


def compile(
    text: str,
    chip: str = "v5e",
    options: Mapping[str, object] | None = None,
    timeout: float = 600,
) -> AotReport:
    """Compile a StableHLO module with a public @main for one device of a chip.

    chip: a name of `tpu_kernels.chips.CHIPS`. options: XLA options by name. timeout: seconds.
    Raises AotError where the compiler refuses the module, dies of it or takes too long.
    """
    target = chips.chip(chip)
    request = {
        "topology": target.topology,
        "options": dict(options or {}),
        "timeout": timeout,
        "environment": _environment(),
    }
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tpu_kernels-aot-") as folder:
        place = Path(folder)
        (place / "module.mlir").write_text(text)
        (place / "request.json").write_text(json.dumps(request))
        code = _worker.run(place)
        if (place / "error.txt").exists():
            raise AotError(f"not compiled for {chip}: {(place / 'error.txt').read_text()}")
        if code == -signal.SIGALRM:
            raise AotError(f"not compiled for {chip}: it took more than {timeout:g} s")
        if code or not (place / "report.json").exists():
            log = (place / "log").read_text(errors="replace")
            raise AotError(f"not compiled for {chip}: {_death(code, log)}")
        return AotReport(
            chip=target,
            executable=(place / "executable").read_bytes(),
            hlo=(place / "module.hlo").read_text(),
            seconds=time.perf_counter() - start,
            **json.loads((place / "report.json").read_text()),
        )


def _environment() -> dict[str, str]:
    variables = {**os.environ, **_ENVIRONMENT}
    library = variables.get("TPU_LIBRARY_PATH", "")
    if not os.path.basename(library).startswith("libtpu"):
        variables.pop("TPU_LIBRARY_PATH", None)  # a plugin for another device
    return variables


def _death(code: int, log: str) -> str:
    """How a process ended, and its last words: from a fatal line on, else the end of its log."""
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    fatal = [at for at, line in enumerate(lines) if line.startswith("F") and ".cc:" in line]
    words = lines[fatal[0] :][:5] if fatal else lines[-5:]
    return f"the compiler's process {how}: " + ("\n".join(words) or "it wrote nothing")


class _Worker:
    """The process that forks one for every module; started by the first, shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def run(self, place: Path) -> int:
        """The exit code of the process that compiled what the folder asks for."""
        with self._lock:
            if self._process is None or self._owner != os.getpid():  # ours, or a forked parent's
                self._start()
            assert self._process and self._process.stdin and self._process.stdout
            try:
                self._process.stdin.write(f"{place}\n")
                self._process.stdin.flush()
                return int(self._process.stdout.readline())
            except (OSError, ValueError) as error:
                raise AotError(_death(*self._end())) from error

    def _start(self) -> None:
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
        self._owner = os.getpid()

    def _end(self) -> tuple[int, str]:
        """Close its input, at whose end it ends; returns its exit code and what it wrote."""
        assert self._process
        with self._process as process, self._log:
            self._process = None
            process.communicate()
            self._log.seek(0)
            return process.returncode, self._log.read().decode(errors="replace")

    def close(self) -> None:
        with self._lock:
            if self._process and self._owner == os.getpid():
                self._end()


_worker = _Worker()
atexit.register(_worker.close)


def main() -> int:
    """The command line: compile a file and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tpu_kernels.aot", description=__doc__)
    parser.add_argument("file", type=Path, help="StableHLO text with a public @main")
    parser.add_argument("--chip", default="v5e", choices=tuple(chips.CHIPS))
    parser.add_argument("--output", type=Path, help="where to write the serialized executable")
    given = parser.parse_args()
    try:
        report = compile(given.file.read_text(), given.chip)
    except (AotError, OSError) as error:
        print(f"{given.file}: {error}", file=sys.stderr)
        return 1
    print(report)
    if given.output:
        given.output.write_bytes(report.executable)
    return 0


if __name__ == "__main__":
    sys.exit(main())
