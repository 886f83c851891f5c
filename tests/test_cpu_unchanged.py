"""On a machine without a chip, code that does not ask for the device behaves as without us."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("cpu_behaviour.py")

NO_ALLOCATOR = (
    "RuntimeError: device_allocator INTERNAL ASSERT FAILED at "
    '"/__w/pytorch/pytorch/c10/core/CachingDeviceAllocator.h":261, please report a bug to PyTorch. '
    "Allocator for tpu is not a DeviceAllocator."
)
NO_HOOKS = (
    "RuntimeError: Please register PrivateUse1HooksInterface by "
    "`RegisterPrivateUse1HooksInterface` first."
)
NOT_LINKED = "RuntimeError: PyTorch is not linked with support for tpu devices"

# What registering a device changes all the same, {probe: outcome with us}; README tells users.
ALWAYS = {
    "accelerator.current_accelerator": "device(type='tpu')",
    "device_of_an_index": "device(type='tpu', index=0)",
    "profiler_activities": "['ProfilerActivity.CPU', 'ProfilerActivity.TPU']",
}
EXPECTED: dict[str, dict[str, str]] = {
    # The core is built: memory is asked of, and pinned by, a device that is there when asked for.
    "built": ALWAYS
    | {
        "accelerator.empty_cache": "None",
        "accelerator.memory_stats": "OrderedDict()",
        "accelerator.memory_allocated": "0",
        "accelerator.max_memory_allocated": "0",
        "pinned_empty": "True",
        "pinned_tensor": "True",
    },
    # Before the first use of the device, which builds it: torch's own words for what is missing.
    "not built": ALWAYS
    | {
        "accelerator.empty_cache": NO_ALLOCATOR,
        "accelerator.memory_stats": NO_ALLOCATOR,
        "accelerator.memory_allocated": NO_ALLOCATOR,
        "accelerator.max_memory_allocated": NO_ALLOCATOR,
        "pinned_empty": NO_HOOKS,
        "pinned_tensor": NO_HOOKS,
        "process_group": NO_HOOKS,  # without a backend; init_process_group("gloo") is as before
        "bare_stream": NOT_LINKED,
        "bare_event": NOT_LINKED,
    },
}


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "TORCH_"))}
    return kept | more


WITHOUT = environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def behaviour(variables: dict[str, str], out: Path) -> dict[str, str]:
    command = [sys.executable, str(SCRIPT), str(out)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return behaviour(WITHOUT, tmp_path_factory.mktemp("without") / "outcomes.json")


@pytest.mark.slow
@pytest.mark.parametrize("state", EXPECTED)
def test_only_the_listed_differences(state: str, without: dict[str, str], tmp_path: Path) -> None:
    torch.ones(1, device="tpu")  # builds the core
    # Without a compiler: nothing that a CPU user does may start to build the core.
    missing = {"TPU_KERNELS_CORE_DIR": str(tmp_path), "CXX": "false"}
    missing = missing if state == "not built" else {}
    with_us = behaviour(environment(**missing), tmp_path / "outcomes.json")
    different = {name: with_us[name] for name in without if with_us[name] != without[name]}
    assert different == EXPECTED[state]


def test_import_brings_few_modules() -> None:
    """No jax, no jaxlib, no lowering: what would make an import slow."""
    script = "import sys, torch; print(*sorted(sys.modules))"
    before, after = (
        set(subprocess.check_output([sys.executable, "-c", script], env=env, text=True).split())
        for env in (WITHOUT, environment())
    )
    new = {name for name in after - before if name not in sys.stdlib_module_names}
    assert {name.partition(".")[0] for name in new} - sys.stdlib_module_names <= {
        "torch",  # torch.tpu, under which the device module is known
        "ml_dtypes",
        "tpu_kernels",
    }
    for late in ("lowering", "hlo", "registry", "recorder", "program", "pjrt", "pjrt_jaxlib"):
        assert f"tpu_kernels.backend.{late}" not in new


@pytest.mark.slow
def test_import_time_is_reported() -> None:
    """For the reader (pytest -rP): processor seconds, and they decide nothing."""
    command = [sys.executable, "-c", "import time, torch; print(time.process_time())"]
    pairs = [
        [float(subprocess.check_output(command, env=env)) for env in (WITHOUT, environment())]
        for _ in range(5)
    ]
    plain, more = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"import torch: {plain:.2f} s, with the device registered {more - plain:+.2f} s")
