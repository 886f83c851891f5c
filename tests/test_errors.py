"""What the device says when it refuses. The words are part of the interface.

Memory, plugins and chips: test_pjrt.py. Wrong inputs of torch's database: conformance/.
"""

import signal
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.fresh_process import python
from tpu_kernels.backend import device
from tpu_kernels.errors import Unsupported

tpu = torch.get_device_module("tpu")


def ones(*shape: int, dtype: torch.dtype = torch.float32, device: str = "tpu") -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def said(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


library = torch.library.Library("tpu_errors_test", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", torch.empty_like, "Meta")


def test_operator_without_lowering() -> None:
    error = said(lambda: torch.ops.tpu_errors_test.twice(ones(2)))
    assert type(error) is Unsupported
    assert str(error) == (
        "tpu_errors_test.twice.default (float32): the tpu device has no lowering for it; "
        "move its operands to the CPU (.cpu()), set TPU_KERNELS_CPU_FALLBACK=1, or add a lowering "
        "(see tpu_kernels.backend)"
    )


def test_dtype_that_the_device_lacks() -> None:
    error = said(lambda: torch.empty(2, dtype=torch.complex32, device="tpu"))
    assert isinstance(error, NotImplementedError)
    assert str(error) == (
        "tpu: dtype ComplexHalf is not supported by the device; convert first, for example with "
        ".float() or .to(torch.complex64)"
    )


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_refused() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
    assert isinstance(said(lambda: quantized.to("tpu")), NotImplementedError)


def test_device_mismatch_names_both() -> None:
    error = said(lambda: ones(2) + ones(2, device="cpu"))
    assert "at least two devices, tpu:0 and cpu" in str(error)
    error = said(lambda: F.linear(ones(2, 2), ones(2, 2, device="cpu")))
    assert "at least two devices, tpu:0 and cpu" in str(error)


# Refused in the same words on every device.
Wrong = Callable[[str], object]
TORCH_S_WORDS: dict[str, Wrong] = {
    "broadcast": lambda d: ones(2, device=d) + ones(3, device=d),
    "matmul": lambda d: ones(2, 3, device=d) @ ones(4, 5, device=d),
    "linear": lambda d: F.linear(ones(2, 3, device=d), ones(4, 5, device=d)),
    "cat": lambda d: torch.cat([ones(2, 3, device=d), ones(2, 4, device=d)]),
    "view": lambda d: ones(2, 3, device=d).view(4, 2),
    "view of strides": lambda d: ones(2, 3, device=d).t().view(6),
    "reshape": lambda d: ones(2, 3, device=d).reshape(5),
    "dimension": lambda d: ones(2, 3, device=d).sum(2),
    "convolution": lambda d: F.conv2d(ones(1, 2, 4, 4, device=d), ones(1, 3, 2, 2, device=d)),
    "index of a dimension": lambda d: ones(2, 3, device=d)[2],
    "slice of a dimension": lambda d: ones(2, 3, device=d).narrow(0, 1, 2),
    "in-place shape": lambda d: ones(2, device=d).add_(ones(3, 2, device=d)),
    "in-place dtype": lambda d: ones(2, dtype=torch.int64, device=d).add_(1.5),
    "in-place dtype of a tensor": lambda d: ones(2, dtype=torch.int64, device=d).mul_(
        ones(2, device=d)
    ),
    "in-place overlap": lambda d: ones(1, device=d).expand(3).add_(1),
    "copy of overlapping memory": lambda d: (lambda x: x[1:].copy_(x[:-1]))(ones(3, device=d)),
    "in-place on a leaf": lambda d: ones(2, device=d).requires_grad_().add_(1),
    "out dtype": lambda d: torch.add(
        ones(2, device=d), 1.5, out=ones(2, dtype=torch.int64, device=d)
    ),
    "bool subtraction": lambda d: (
        ones(2, dtype=torch.bool, device=d) - ones(2, dtype=torch.bool, device=d)
    ),
    "backward of a matrix": lambda d: ones(2, 2, device=d).requires_grad_().exp().backward(),
    "changed before backward": lambda d: (lambda x: (y := x.exp(), y.add_(1), y.sum().backward()))(
        ones(2, device=d).requires_grad_()
    ),
    "item of two": lambda d: ones(2, device=d).item(),
    "truth of two": lambda d: bool(ones(2, device=d)),
    "empty maximum": lambda d: ones(0, device=d).max(),
    "gather index": lambda d: ones(2, device=d).gather(0, ones(1, device=d)),
}


@pytest.mark.parametrize("name", TORCH_S_WORDS)
def test_in_torch_s_words(name: str) -> None:
    call = TORCH_S_WORDS[name]
    want, got = said(lambda: call("cpu")), said(lambda: call("tpu"))
    assert str(got).replace("tpuFloatType", "torch.FloatTensor") == str(want)
    assert type(got) is type(want)


DEBUG = """
import torch
from torch.nn.functional import embedding

def index(values, device):
    return torch.tensor(values, device=device)

def said(call, device):
    try:
        return call(torch.arange(4.0, device=device), device).cpu()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

for call in (
    lambda x, d: x[index([0, 4], d)],
    lambda x, d: x.index_select(0, index([-5], d)),
    lambda x, d: x.gather(0, index([7], d)),
    lambda x, d: embedding(index([9], d), x[:, None]),
    lambda x, d: x.scatter(0, index([4], d), 1.0),
    lambda x, d: x.repeat(2, 1).index_add(0, index([2], d), x[None]),
):
    want, got = said(call, "cpu"), said(call, "tpu")
    print("Error: " in want and got == want or (want, got))
print(torch.arange(4.0, device="tpu").sum().item())
"""


def test_indices_out_of_bounds_in_debug_mode() -> None:
    """In the CPU's words, and the process goes on."""
    done = python(DEBUG, TORCH_TPU_LAUNCH_BLOCKING="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True"] * 6 + ["6.0"]


FORK = """
import os, torch
{before}
if (child := os.fork()) == 0:
    try:
        print(torch.ones(2).sum().item(), flush=True)
        torch.ones(2, device="tpu")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(torch.ones(2, device="tpu").sum().item())
"""


def test_use_in_a_forked_child() -> None:
    done = python(FORK.format(before='torch.ones(2, device="tpu")'))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2.0",
        "tpu: the device was used in the parent process and cannot be used in a forked child; "
        "start workers with the 'spawn' method (torch.multiprocessing.set_start_method)",
        "2.0",
    ]


def test_fork_before_the_first_use_is_no_matter() -> None:
    done = python(FORK.format(before=""))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2.0", "2.0"]


def test_asynchronous_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording goes on after a failure; each read of what depends on it says where it began."""
    monkeypatch.delenv("TORCH_TPU_LAUNCH_BLOCKING", raising=False)
    x, other = ones(3), ones(3) * 5
    device.core.inject_failure("aten::mul.Tensor")
    doubled = x * 2
    more = doubled + 1
    most = more.exp()
    for result, op in ((doubled, "mul.Tensor"), (more, "add.Tensor"), (most, "exp")):
        for _ in range(2):  # a second read says the same
            text = str(said(result.cpu))
            assert "aten::mul.Tensor failed: injected device failure" in text
            here = f"first recorded at {__file__}:"
            assert text.count(here) == 2 and f"it is the result of aten::{op}, {here}" in text
    assert other.tolist() == [5, 5, 5]
    assert (x * 3).tolist() == [3, 3, 3]
    doubled.fill_(1)  # a new value
    assert doubled.tolist() == [1, 1, 1]
    tpu.synchronize()


# Reading device memory through the host. torch copies a storage's element to the host rightly.
def test_element_of_a_storage() -> None:
    assert ones(2).untyped_storage()[3] == 0x3F  # 1.0 is 0x3f800000


def test_numpy_is_refused() -> None:
    assert "can't convert tpu:0 device type tensor to numpy" in str(said(lambda: ones(2).numpy()))


def test_read_through_a_pointer_faults() -> None:
    """No exception can come of it, but neither can another tensor's bytes: the process ends."""
    done = python(
        "import ctypes, torch; x = torch.ones(2, device='tpu'); ctypes.string_at(x.data_ptr(), 8)"
    )
    assert done.returncode == -signal.SIGSEGV
