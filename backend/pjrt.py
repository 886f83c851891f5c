"""Devices, buffers and executables: the runtime under the "tpu" device."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tpu_kernels.backend import dtypes
from tpu_kernels.backend import pjrt_jaxlib as jaxlib
from tpu_kernels.backend.pjrt_jaxlib import (
    block_until_ready as block_until_ready,
)
from tpu_kernels.backend.pjrt_jaxlib import (
    consume_with_handlers as consume_with_handlers,
)
from tpu_kernels.backend.pjrt_jaxlib import (
    is_ready as is_ready,
)

Array = Any

_ROWS = {row.hlo: row for row in dtypes.TABLE}


@dataclass(frozen=True)
class Aval:
    shape: tuple[int, ...]
    dtype: torch.dtype


_TENSOR = re.compile(r"tensor<((?:\d+x)*)([^<>]+(?:<[^<>]+>)?)>")


def _signature(text: str) -> tuple[list[tuple], list[tuple]]:
    """(shape, element type) of the operands and results of @main."""
    start = text.index("@main(") + len("@main")
    end = _closing(text, start)
    operands = text[start:end]
    arrow = re.compile(r"\s*->\s*").match(text, end)
    results = ""
    if arrow:
        stop = (
            _closing(text, arrow.end())
            if text[arrow.end()] == "("
            else text.index("{", arrow.end())
        )
        results = text[arrow.end() : stop]
    return _tensors(operands), _tensors(results)


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at + 1
    raise ValueError("unbalanced parentheses in the signature of @main")


def _tensors(text: str) -> list[tuple]:
    return [
        (tuple(int(d) for d in dims.split("x") if d), element)
        for dims, element in _TENSOR.findall(text)
    ]


class Executable:
    def __init__(self, loaded: Any, text: str, device: Any, placement: Any) -> None:
        operands, results = _signature(text)
        self.loaded = loaded
        self.execute_sharded = loaded.execute_sharded
        self.handlers = [jaxlib.result_handler(s, _ROWS[e].numpy, placement) for s, e in results]
        self.in_avals = [Aval(s, _ROWS[e].torch) for s, e in operands]
        self.out_avals = [Aval(s, _ROWS[e].torch) for s, e in results]
        self._operands = [(s, _ROWS[e].numpy) for s, e in operands]

    def __call__(self, args: Sequence[Array]) -> list[Array]:
        return consume_with_handlers(self.execute_sharded(list(args)), self.handlers)


class Client:
    def __init__(self) -> None:
        count = int(os.environ.get("TPU_KERNELS_CPU_DEVICES", "1"))
        self._client = jaxlib.make_cpu_client(asynchronous=False, num_devices=count)
        self.pid = os.getpid()
        self.platform = "cpu"
        self.is_plugin = False
        self.synchronous = True
        self.devices = self._client.local_devices()
        self.versions: dict[str, str] = {}
        self._placements = [jaxlib.sharding(d) for d in self.devices]
        self._lists = [jaxlib.device_list(d) for d in self.devices]

    def compile(self, text: str, device: int, options: Mapping[str, object] = {}) -> Executable:
        opts = jaxlib.CompileOptions()
        opts.env_option_overrides = [("xla_cpu_use_fusion_emitters", False), *options.items()]
        if device:
            from jaxlib import _jax

            opts.device_assignment = _jax.DeviceAssignment.create(
                np.array([[self.devices[device].id]], np.int32)
            )
            opts.executable_build_options.device_assignment = opts.device_assignment
        loaded = self._client.compile_and_load(text, self._lists[device], opts)
        return Executable(loaded, text, self.devices[device], self._placements[device])

    def put(self, array: np.ndarray, device: int) -> Array:
        return jaxlib.put(array, self.devices[device], self._placements[device])

    def to_host(self, value: Array) -> np.ndarray:
        out = np.empty(value.aval.shape, value.aval.dtype)
        ctypes.memmove(out.ctypes.data, self.host_pointer(value), out.nbytes)
        return out

    def host_pointer(self, value: Array) -> int:
        return jaxlib.host_pointer(value)

    def copy_to_device(self, value: Array, device: int) -> Array:
        return jaxlib.copy_to_device(value, self._lists[device], self._placements[device])


_client: Client | None = None
_lock = threading.Lock()


def client() -> Client:
    global _client
    if _client is None:
        with _lock:
            if _client is None:
                _client = Client()
    if _client.pid != os.getpid():
        raise RuntimeError("the tpu device cannot be used in a forked child; start it with spawn")
    return _client


def device_count() -> int:
    return int(os.environ.get("TPU_KERNELS_CPU_DEVICES", "1"))


def chip_present() -> bool:
    return False


def shutdown() -> None:
    global _client
    _client = None
