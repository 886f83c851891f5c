"""Run torch's operator database in workers, resumable, and write a report."""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from .expectations import EXCLUDED, surprise
from .judge import Verdict
from .report import write
from .samples import database, dtype_of

START_LIMIT = 600  # seconds until a worker is ready: the core may have to be compiled


class Worker:
    """A process that judges one operator at a time; a dead or late one is replaced."""

    def __init__(self, options: argparse.Namespace) -> None:
        arguments = [options.device, str(options.samples), options.dtype]
        self.command = [sys.executable, "-m", "tests.conformance.worker", *arguments]
        self.dtype, self.limit = options.dtype, options.limit
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str | None] = queue.Queue()

    def judge(self, name: str) -> dict:
        process = self.process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            line = self.lines.get(timeout=self.limit)
        except queue.Empty:
            return self._lost(name, f"no answer within {self.limit:g} s")
        except BrokenPipeError:
            line = None
        if line is None:
            return self._lost(name, f"the process died, exit code {process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
        self.lines = queue.Queue()
        arguments = (self.process.stdout, self.lines)
        threading.Thread(target=_pump, args=arguments, daemon=True).start()
        if self.lines.get(timeout=START_LIMIT) != "ready\n":
            raise RuntimeError(f"worker did not start: exit code {self.process.wait()}")
        return self.process

    def _lost(self, name: str, why: str) -> dict:
        self.close()
        dtype = str(dtype_of(database()[name], self.dtype)).removeprefix("torch.")
        return asdict(Verdict(name, dtype, failed=1, failure=why))


def _pump(source: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in source:
        lines.put(line)
    lines.put(None)


def wanted(options: argparse.Namespace, done: dict[str, dict]) -> Iterator[str]:
    index, of = (int(part) for part in options.shard.split("/"))
    chosen = options.only.split(",") if options.only else database()
    names = [n for n in chosen if not options.dtype or dtype_of(database()[n], options.dtype)]
    for position, name in enumerate(names):
        if name not in EXCLUDED and name not in done and position % of == index:
            yield name


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--dtype", default="", help="float32, or what each operator takes first")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th, from I")
    parser.add_argument("--only", metavar="NAMES", help="separated by commas")
    parser.add_argument("--samples", type=int, default=3, help="of each operator")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one operator")
    parser.add_argument("--report", type=Path, default=Path("bench_output/conformance.md"))
    parser.add_argument("--resume", action="store_true", help="keep what the last run found")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    record = options.report.with_suffix(".jsonl")
    record.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        record.unlink(missing_ok=True)
    lines = record.read_text().splitlines() if record.exists() else []
    done = {verdict["op"]: verdict for verdict in map(json.loads, lines)}
    worker = Worker(options)
    names = list(wanted(options, done))
    for count, name in enumerate(names, 1):
        verdict = done[name] = worker.judge(name)
        with record.open("a") as file:  # shards may share the file
            file.write(json.dumps(verdict) + "\n")
        news = surprise(name, verdict["dtype"], verdict["failure"])
        print(f"{count}/{len(names)} {name}: {news or 'as expected'}", flush=True)
    worker.close()
    return write(options.report, list(done.values()), options)


if __name__ == "__main__":
    sys.exit(main())
