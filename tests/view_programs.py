"""Random programs of views and mutations, run on CPU and on another device.

After every step each live tensor is compared: shape, strides, offset, dtype, which tensors share a
storage and how long it is, and every bit of the values; a step that raises must raise the same
type on both. A program that differs is shrunk, and printed as Python that runs by itself.

    python -m tests.view_programs --count 20000 --shard 0/2 --report report.jsonl

runs until done; started again with the same report it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import tpu_kernels  # noqa: F401  (brings the device where the entry point is not installed)
from tests.view_statements import (
    PRELUDE,
    Statement,
    draw_base,
    draw_mutation,
    draw_view,
    undefined,
)

STEPS = 18
LIVE = 7
POOL = 300  # programs that draw from the same geometries

Program = Sequence[Statement]


class Machine:
    """Runs statements on one device."""

    def __init__(self, device: str) -> None:
        self.names: dict[str, object] = {"torch": torch, "dev": device}
        self.error = ""
        exec(PRELUDE, self.names)

    def run(self, text: str) -> str:
        """Execute one line; returns the name of what it raised, or nothing."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(text, self.names)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            return type(error).__name__
        return ""

    @property
    def live(self) -> dict[str, torch.Tensor]:
        return {name: t for name, t in self.names.items() if isinstance(t, torch.Tensor)}

    def state(self) -> dict[str, dict[str, object]]:
        """What can be observed of every live tensor."""
        storages: dict[int, str] = {}
        return {name: observe(name, t, storages) for name, t in self.live.items()}


def observe(name: str, t: torch.Tensor, storages: dict[int, str]) -> dict[str, object]:
    storage = t.untyped_storage()
    return {
        "dtype": t.dtype,
        "shape": tuple(t.shape),
        "strides": strides(t),
        "offset": t.storage_offset(),
        "storage": (storages.setdefault(storage._cdata, name), storage.nbytes()),
        "values": bits(t),
    }


def strides(t: torch.Tensor) -> list[int]:
    """Those that address memory: torch's own CPU and Meta kernels disagree on all others."""
    if t.numel() == 0:
        return []
    return [stride for n, stride in zip(t.shape, t.stride(), strict=True) if n != 1]


def bits(t: torch.Tensor) -> list:
    """The elements as integers, a complex number as two; NaNs are one, and so are zeros.

    Which sign a complex zero has depends on when torch resolves a conjugation.
    """
    host = t.detach().cpu().resolve_conj().resolve_neg().contiguous()
    host = torch.view_as_real(host) if host.dtype.is_complex else host
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    patterns = host.clone().view(integers[host.element_size()])
    if host.dtype.is_floating_point:
        patterns = patterns.masked_fill(host.isnan(), -1).masked_fill(host == 0, 0)
    return patterns.tolist()


class Difference(NamedTuple):
    """Where two devices parted: the step, the tensor (or the exception), what each has."""

    step: int
    name: str
    what: str
    want: object
    got: object


def run(program: Program, device: str) -> Difference | None:
    """The first difference between CPU and the device, if there is one."""
    cpu, other = Machine("cpu"), Machine(device)
    for step, statement in enumerate(program):
        if undefined(statement, cpu.live):
            continue
        want, got = cpu.run(statement.text), other.run(statement.text)
        if want != got:
            want, got = cpu.error if want else "none", other.error if got else "none"
            return Difference(step, "", "exception", want, got)
        for name, expected in cpu.state().items():
            try:
                found = observe(name, other.live[name], {})
            except Exception as error:
                return Difference(step, name, "read", "values", f"{type(error).__name__}: {error}")
            found["storage"] = other.state()[name]["storage"]
            for what, value in expected.items():
                if found[what] != value:
                    return Difference(step, name, what, value, found[what])
    return None


def generate(seed: int, steps: int = STEPS) -> list[Statement]:
    """A program, drawn while it runs on CPU so that each statement fits what is there."""
    rng, pool, machine = random.Random(seed), seed // POOL, Machine("cpu")
    program: list[Statement] = []
    while len(program) < steps:
        live = machine.live
        for statement in draw(rng, pool, len(program), live):
            if not undefined(statement, live):
                program.append(statement)
                machine.run(statement.text)
    return program


def draw(
    rng: random.Random, pool: int, step: int, live: dict[str, torch.Tensor]
) -> Iterator[Statement]:
    name = f"t{step}"
    if not live or rng.random() < 0.04:
        yield draw_base(rng, name)
        return
    if len(live) > LIVE:
        yield Statement(f"del {rng.choice(sorted(live))}")
        return
    source = rng.choice(sorted(live))
    if rng.random() < 0.5:
        yield draw_view(pool, rng, name, source, live)
    else:
        yield draw_mutation(pool, rng, source, live)


# Shrinking and printing.


def shrink(program: Program, differs: Callable[[Program], Difference | None]) -> list[Statement]:
    """Drop statements while the program still differs."""
    program, at = list(program), 0
    found = differs(program)
    assert found is not None
    program = program[: found.step + 1]
    while at < len(program):
        shorter = program[:at] + program[at + 1 :]
        if differs(shorter) is not None:
            program, at = shorter, 0
        else:
            at += 1
    return program


def listing(program: Program, device: str) -> str:
    """The program as Python that shows the difference."""
    found = run(program, device)
    assert found is not None
    grows = any("grow(" in statement.text for statement in program)
    lines = ["import torch", "", *([PRELUDE] if grows else []), "def program(dev):"]
    cpu = Machine("cpu")
    for statement in program[: found.step + 1]:
        raised = cpu.run(statement.text) and statement is not program[found.step]
        lines.append(f"    # raises: {statement.text}" if raised else f"    {statement.text}")
    lines.append(f"    return {found.name or None}")
    lines += ["", 'print("cpu", program("cpu"))', f'print("{device}", program("{device}"))']
    lines.append(f"# {found.what} of {found.name or 'the last line'}:")
    lines.append(f"#   cpu has {found.want}")
    lines.append(f"#   {device} has {found.got}")
    return "\n".join(lines)


def failure(seed: int, device: str) -> str | None:
    """The shrunk listing of a program that differs, or None."""
    program = generate(seed)
    if run(program, device) is None:
        return None
    return f"# seed {seed}\n" + listing(shrink(program, lambda p: run(p, device)), device)


# By hand.


def finished(report: Path) -> dict[int, str | None]:
    """The failure, if any, of every program that the report knows."""
    if not report.exists():
        return {}
    entries = [json.loads(line) for line in report.read_text().splitlines()]
    return {entry["seed"]: entry["failure"] for entry in entries}


def try_programs(seeds: Sequence[int], device: str, report: Path) -> None:
    began = time.monotonic()
    for count, seed in enumerate(seeds, 1):
        text = failure(seed, device)
        with report.open("a") as out:
            out.write(json.dumps({"seed": seed, "failure": text}) + "\n")
        if text:
            print(f"\n{text}\n", flush=True)
        if count % 50 == 0:
            rate = count / (time.monotonic() - began)
            print(f"{count}/{len(seeds)} programs, {rate:.1f}/s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="i/n: pools whose number is i modulo n")
    parser.add_argument("--report", type=Path, default=Path("view_programs.jsonl"))
    parser.add_argument("--device", default="tpu")
    options = parser.parse_args()
    torch.zeros(1, device=options.device)  # fails here, if at all
    torch.set_flush_denormal(True)
    shard, shards = map(int, options.shard.split("/"))
    seeds = range(options.first, options.first + options.count)
    seeds_here = [seed for seed in seeds if seed // POOL % shards == shard]
    done = finished(options.report)
    todo = [seed for seed in seeds_here if seed not in done]
    try_programs(todo[: 5 * POOL], options.device, options.report)
    if len(todo) > 5 * POOL:  # a process keeps what it compiled: a new one goes on
        os.execv(sys.executable, [sys.executable, "-m", "tests.view_programs", *sys.argv[1:]])
    done = finished(options.report)
    failures = [seed for seed in seeds_here if done[seed]]
    print(f"{len(seeds_here)} programs, {len(failures)} differ: seeds {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
