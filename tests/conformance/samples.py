"""torch's sample inputs, made on the CPU and moved with their strides and shared storage."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Sample = tuple[tuple, dict[str, Any], Callable]
"""Arguments, keyword arguments, and what maps the result to something differentiable."""

# Operators without float32 are run in the first of these that they take.
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.float8_e4m3fn)


@cache
def database() -> dict[str, Any]:
    """Every OpInfo by its full name. Costs seconds: torch builds the database on import."""
    from torch.testing._internal import common_methods_invocations as invocations

    # The database would give random operators a seed of its own at each call.
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {name_of(op): op for op in invocations.op_db}


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def dtype_of(op: Any, wanted: str = "") -> torch.dtype | None:
    """The dtype in which the operator is run, `wanted` if given; None where the CPU lacks it."""
    candidates = (getattr(torch, wanted),) if wanted else DTYPES
    supported = op.supported_dtypes("cpu")
    return next((dtype for dtype in candidates if dtype in supported), None)


def differentiable(op: Any, dtype: torch.dtype) -> bool:
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def seed(value: int = 0) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def samples(op: Any, dtype: torch.dtype, count: int | None) -> list[Sample]:
    """The first `count` samples of an operator, the same in every process."""
    seed()
    found = op.sample_inputs("cpu", dtype, requires_grad=differentiable(op, dtype))
    return [((s.input, *s.args), s.kwargs, s.output_process_fn_grad) for s in islice(found, count)]


def widened(tree: Any) -> Any:
    """Copies of all tensors of `tree`, float32 as float64."""

    def widen(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dtype is not torch.float32:
            return leaf
        return leaf.detach().double().requires_grad_(leaf.requires_grad)

    return tree_map(widen, tree)


def moved(tree: Any, device: str) -> Any:
    """Copies of all tensors of `tree` on `device`; the original strides, offsets and sharing."""
    bases: dict[tuple, Tensor] = {}

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            new = _moved_tensor(leaf.detach(), device, bases).detach()
            return new.requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return torch.device(device)
        return leaf

    return tree_map(move, tree)


def _moved_tensor(tensor: Tensor, device: str, bases: dict[tuple, Tensor]) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor.to(device, copy=True)
    if tensor.is_conj():
        return _moved_tensor(tensor.conj(), device, bases).conj()
    if tensor.is_neg():
        return torch._neg_view(_moved_tensor(torch._neg_view(tensor), device, bases))
    storage = tensor.untyped_storage()
    key = (storage.data_ptr(), tensor.dtype)
    if key not in bases:
        flat = torch.empty(0, dtype=tensor.dtype).set_(storage)
        whole = flat.numel() == tensor.numel() and tensor.is_contiguous()
        bases[key] = (tensor if whole else flat).to(device, copy=True)
    base = bases[key]
    if base.shape == tensor.shape and base.stride() == tensor.stride():
        return base.view(base.shape)
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
