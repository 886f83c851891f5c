"""What the device says when it refuses. The words are part of the interface.

Memory, plugins and chips: test_pjrt.py. Wrong inputs of torch's database: conformance/.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.fresh_process import python
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
    assert str(error) == ""


REFUSED_DTYPES: dict[str, tuple[Callable[[], object], str]] = {
    "complex32": (lambda: torch.empty(2, dtype=torch.complex32, device="tpu"), ""),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8).to("tpu"),
        "",
    ),
}


@pytest.mark.parametrize("name", REFUSED_DTYPES)
def test_dtype(name: str) -> None:
    call, text = REFUSED_DTYPES[name]
    error = said(call)
    assert isinstance(error, NotImplementedError)
    assert str(error) == text


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
    want, got = (said(lambda d=d: TORCH_S_WORDS[name](d)) for d in ("cpu", "tpu"))  # type: ignore[misc]
    assert str(got).replace("tpu:0", "cpu").replace("tpuFloatType", "FloatType") == str(want)
    assert type(got) is type(want)


DEBUG = """
import torch
x = torch.arange(4.0, device="tpu")
calls = [
    lambda: x[torch.tensor([0, 4], device="tpu")],
    lambda: x.index_select(0, torch.tensor([-5], device="tpu")),
    lambda: x.gather(0, torch.tensor([7], device="tpu")),
    lambda: torch.nn.functional.embedding(torch.tensor([9], device="tpu"), x[:, None]),
    lambda: x.scatter(0, torch.tensor([4], device="tpu"), 1.0),
]
for call in calls:
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0])
    else:
        print("nothing")
print(x.sum().item())
"""


def test_indices_out_of_bounds_in_debug_mode() -> None:
    done = python(DEBUG, TORCH_TPU_LAUNCH_BLOCKING="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == []


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
        "the tpu device was started in the parent process and cannot be used in a forked child: "
        "start the child with multiprocessing.get_context('spawn')",
        "2.0",
    ]


def test_fork_before_the_first_use_is_no_matter() -> None:
    done = python(FORK.format(before=""))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2.0", "2.0"]


# Reading device memory through the host: what raises, and what no process can catch.
HOST_READS: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "untyped_storage()[0]": (lambda x: x.untyped_storage()[0], ""),
    "numpy": (lambda x: x.numpy(), "can't convert tpu:0 device type tensor to numpy"),
    "__array_interface__": (lambda x: x.__array_interface__, ""),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_host_read_raises(name: str) -> None:
    call, text = HOST_READS[name]
    assert text in str(said(lambda: call(ones(2))))


def test_host_read_through_a_pointer_faults() -> None:
    """The address is reserved and unreadable: a signal, not another tensor's bytes."""
    done = python(
        "import ctypes, torch; x = torch.ones(2, device='tpu'); ctypes.string_at(x.data_ptr(), 8)"
    )
    assert done.returncode == -11
