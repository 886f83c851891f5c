"""On a machine without a chip, code that does not ask for the device behaves as without us."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("cpu_behaviour.py")

# What registering a device changes all the same (README has the same table). Outcomes with us.
EXPECTED: dict[str, str] = {
    "accelerator.current_accelerator": "device(type='tpu')",
    "bare_stream": "",
    "bare_event": "",
    "modules": "",
}


def environment(with_us: bool) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "TORCH_"))}
    return kept if with_us else kept | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def behaviour(with_us: bool, folder: Path) -> dict[str, str]:
    out = folder / f"{with_us}.json"
    command = [sys.executable, str(SCRIPT), str(out)]
    done = subprocess.run(command, env=environment(with_us), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
def test_only_the_listed_differences(tmp_path: Path) -> None:
    without, with_us = behaviour(False, tmp_path), behaviour(True, tmp_path)
    different = {name: with_us[name] for name in without if with_us[name] != without[name]}
    assert different == EXPECTED


def test_import_brings_few_modules() -> None:
    """Neither jax, jaxlib nor the lowering table: what makes an import slow."""
    script = "import sys, torch; print(*sorted(sys.modules))"
    without, with_us = (
        set(subprocess.check_output([sys.executable, "-c", script], env=environment(us)).split())
        for us in (False, True)
    )
    assert {name.decode() for name in with_us - without} == set()


@pytest.mark.slow
def test_import_time_is_reported() -> None:
    """For the reader (pytest -rP): the time decides nothing."""
    script = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(5):
        for with_us, times in seconds.items():
            command = [sys.executable, "-c", script]
            times.append(float(subprocess.check_output(command, env=environment(with_us))))
    without, more = statistics.median(seconds[False]), statistics.median(seconds[True])
    print(f"import torch: {without:.2f} s, with the device registered {more - without:+.2f} s")
