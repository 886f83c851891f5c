"""All benchmarks in one run: a table on the terminal, JSON in bench_output/.

    make bench            or   python tests/benchmarks/run.py [--only ops models] [--out DIR]

The process is pinned to one core and torch to one thread before either runtime starts, because
XLA sizes its pool by the cores it may use.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["TPU_KERNELS_CACHE"] = "0"  # first steps and compile counts are a first run's
sys.path.append(str(Path(__file__).parents[2] / "examples"))

import torch  # noqa: E402

torch.set_num_threads(1)

import memory  # noqa: E402
import models  # noqa: E402
import ops  # noqa: E402
import programs  # noqa: E402

Rows = Iterator[dict[str, object]]
BENCHMARKS: dict[str, Callable[[], Rows]] = {
    "ops": ops.op_times,
    "models": models.step_times,
    "programs": programs.program_counts,
    "memory": memory.growth,
}


def shown(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def verdict(row: dict[str, object]) -> str:
    bar = row.get("bar")
    got = row.get("ratio", row.get("compiles"))
    if not isinstance(bar, int | float) or not isinstance(got, int | float):
        return ""
    return f"  (bar {bar}: {'met' if got <= bar else 'MISSED'})"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Ratios to torch CPU eager, one core.")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--out", type=Path, default=Path("bench_output"))
    args = parser.parse_args(argv)

    packages = {name: version(name) for name in ("torch", "jaxlib", "tpu_kernels")}
    report = {"date": date.today().isoformat(), "python": platform.python_version(), **packages}
    print(*(f"{k} {v}" for k, v in report.items()), sep=", ")
    results: dict[str, list[dict[str, object]]] = {}
    for name in args.only:
        print(f"\n{name}")
        results[name] = []
        for row in BENCHMARKS[name]():
            results[name].append(row)
            facts = (f"{k} {shown(v)}" for k, v in row.items() if k not in ("name", "bar"))
            print(f"  {row['name']:<28}", ", ".join(facts) + verdict(row), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.json"
    file.write_text(json.dumps({**report, "results": results}, indent=1) + "\n")
    print(f"\nwritten to {file}")


if __name__ == "__main__":
    main()
