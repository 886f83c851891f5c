"""Cases that users of other devices reported, on being a device. Each test is named after its case.

Views and mutation (D30 to D37) are in test_views.py, the executable cache (D46 to D49) in
test_cache.py.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.fresh_process import python
from tpu_kernels.testing import assert_close, program_count
from tpu_kernels.timing import bench

tpu = torch.get_device_module("tpu")


def test_D69_versions_that_do_not_fit(tmp_path: Path) -> None:
    """A jaxlib without what the adapter needs: torch imports, the first use says what is wrong."""
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").touch()
    fresh = python(
        "import torch; torch.ones(2); print('imported'); torch.ones(2, device='tpu')",
        PYTHONPATH=str(tmp_path),
    )
    assert fresh.stdout == "imported\n"
    assert fresh.returncode == 1
    last = fresh.stderr.splitlines()[-1]
    assert "VersionMismatch: jaxlib" in last
    assert ", libtpu " in last and f"torch {torch.__version__} do not work together" in last
    assert "A set known to work: jaxlib 0.10.2, libtpu 0.0.42.1, torch 2.13.0." in last


REGISTRATIONS = """
import torch
if {use}: torch.ones(2, device="tpu") + 1
print(*sorted(torch._C._dispatch_get_registrations_for_dispatch_key("AutogradPrivateUse1")))
"""
# Operators whose gradient is ours to decide, with the reason.
AUTOGRAD_OF_OURS: dict[str, str] = {}


def test_D73_no_autograd_kernels_of_ours() -> None:
    without = python(REGISTRATIONS.format(use=False), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    with_us = python(REGISTRATIONS.format(use=True))
    assert with_us.returncode == 0, with_us.stderr
    assert set(with_us.stdout.split()) - set(without.stdout.split()) == set(AUTOGRAD_OF_OURS)


@pytest.mark.parametrize(
    ("script", "autoload"),
    [
        ("import tpu_kernels", "1"),
        ("import torch", "1"),
        ("import torch, tpu_kernels", "1"),
        ("import tpu_kernels, torch", "1"),
        ("import torch, tpu_kernels", "0"),
        ("import tpu_kernels", "0"),
    ],
)
def test_D81_import_in_any_order(script: str, autoload: str) -> None:
    use = "; import torch; print((torch.ones(2, device='tpu') + 1).tolist())"
    fresh = python(script + use, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert fresh.returncode == 0, fresh.stderr
    assert fresh.stdout == "[2.0, 2.0]\n"


def test_D81_broken_runtime_prints_its_cause(tmp_path: Path) -> None:
    (tmp_path / "jaxlib").mkdir()
    broken = "raise ImportError('libsomething.so: cannot open shared object file')"
    (tmp_path / "jaxlib" / "__init__.py").write_text(broken)
    fresh = python("import torch; torch.ones(2, device='tpu')", PYTHONPATH=str(tmp_path))
    assert fresh.returncode == 1
    assert "libsomething.so: cannot open shared object file" in fresh.stderr.splitlines()[-1]


def test_D85_bfloat16_is_not_dropped() -> None:
    a = torch.ones(2, 2, device="tpu")
    assert tpu.is_bf16_supported() is True
    with torch.autocast("tpu"):
        assert (a @ a).dtype is torch.bfloat16
    assert (a @ a).dtype is torch.float32


def test_D87_twice_the_work_takes_twice_the_time() -> None:
    a, b = torch.ones(384, 384, device="tpu"), torch.ones(384, 384, device="tpu")
    with program_count() as one:
        a @ b
    with program_count() as two:
        (a @ b, a @ b)
    assert two.executions == 2 * one.executions == 2  # nothing is elided
    # Other processes disturb one ratio, hardly the median of five.
    pairs = [(bench(lambda: (a @ b, a @ b)), bench(lambda: a @ b)) for _ in range(5)]
    ratios = sorted(double / single for double, single in pairs)
    assert 1.5 < ratios[2] < 2.5, ratios


def test_D89_float32_is_float32_on_the_cpu_client() -> None:
    x = torch.tensor([[1 + 2**-9]], device="tpu")
    one = torch.ones(1, 1, device="tpu")
    before = torch.get_float32_matmul_precision()
    try:
        for setting in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(setting)
            assert (x @ one).item() == 1.001953125
            with tpu.precision("highest"):
                assert (x @ one).item() == 1.001953125
    finally:
        torch.set_float32_matmul_precision(before)


def test_D89_integers_to_256_are_exact_at_any_precision() -> None:
    whole = torch.arange(257.0, device="tpu").view(-1, 1)
    one = torch.ones(1, 1, device="tpu")
    for mode in ("default", "high", "highest"):
        with tpu.precision(mode):
            assert (whole @ one).flatten().tolist() == list(range(257))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_D91_argmax_after_softmax(dtype: torch.dtype) -> None:
    rows = [[-0.4688, 0.25], [1.5781, -1.3281], [-0.8203, 0.4863], [-2.4062, 2.0469]]
    found = F.softmax(torch.tensor(rows, dtype=dtype, device="tpu"), 1).argmax(1)
    assert_close(found, torch.tensor([1, 0, 1, 1]), "EXACT")
    assert torch.zeros(3, 4, dtype=dtype, device="tpu").argmax(1).tolist() == [0, 0, 0]


# Out-of-range conversions are undefined in C++ and so in torch: not tested.
@pytest.mark.parametrize("source", [torch.int64, torch.int32, torch.float32, torch.bfloat16])
def test_D93_casts_in_range(source: torch.dtype) -> None:
    values = torch.tensor([0, 1, 127, 128, 254, 255], dtype=source)
    assert_close(values.to("tpu").to(torch.uint8), values.to(torch.uint8), "EXACT")
    signed = torch.tensor([-128, -1, 0, 127], dtype=source)
    assert_close(signed.to("tpu").to(torch.int8), signed.to(torch.int8), "EXACT")
