"""Devices, buffers and executables: the runtime under the "tpu" device.

One client a process, made on first use. Text of a StableHLO module in, jaxlib arrays out; what can
go wrong inside jaxlib without an exception (research: wrong device, dtype of equal size, donating
copies, callbacks in a cache) is checked here first. No call made here imports jax.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpu_kernels.backend import cache, dtypes, pjrt_errors
from tpu_kernels.backend import pjrt_jaxlib as jaxlib
from tpu_kernels.backend.pjrt_ahead import AheadOfTime, compile_ahead_of_time
from tpu_kernels.backend.pjrt_choice import Choice, chip_present, choose
from tpu_kernels.backend.pjrt_jaxlib import block_until_ready, consume_with_handlers, is_ready
from tpu_kernels.backend.pjrt_options import (
    cpu_options,
    keeps_values_right,
    refused_option,
    without,
)
from tpu_kernels.backend.pjrt_program import Aval, has_python_callback, signature
from tpu_kernels.errors import DonatedTensor, Unsupported

__all__ = [
    "AheadOfTime",
    "Aval",
    "Client",
    "DeviceDescription",
    "Executable",
    "block_until_ready",
    "chip_present",
    "client",
    "compile_ahead_of_time",
    "consume_with_handlers",
    "device_count",
    "is_ready",
    "shutdown",
]

Array = Any
# What XLA's CPU client asks of memory that it uses in place.
_ALIGNMENT = 64
log = logging.getLogger("tpu_kernels.pjrt")


@dataclass(frozen=True)
class DeviceDescription:
    """memory: bytes the device can hold, None where the runtime does not say."""

    name: str
    kind: str
    memory: int | None


class Executable:
    """A program loaded on one device.

    `execute_sharded` and `handlers` are for a caller that has checked its arguments:
    consume_with_handlers(execute_sharded([...]), handlers) is the list of results. Calling the
    executable checks them.
    """

    def __init__(
        self, owner: Client, device: int, avals: tuple[list[Aval], list[Aval]], loaded: Any
    ) -> None:
        self.in_avals, self.out_avals = avals
        self.device = device
        self.loaded = loaded
        self.execute_sharded = loaded.execute_sharded
        self.handlers = [
            jaxlib.result_handler(aval.shape, dtypes.NUMPY[aval.dtype], owner.shardings[device])
            for aval in self.out_avals
        ]
        self._owner = owner

    def __call__(self, args: Sequence[Array]) -> list[Array]:
        """Run. Raises TypeError for a wrong count, shape or dtype, ValueError for a device."""
        args = list(args)
        if len(args) != len(self.in_avals):
            raise TypeError(f"the program takes {len(self.in_avals)} operands, got {len(args)}")
        for position, (value, aval) in enumerate(zip(args, self.in_avals, strict=True)):
            self._check(position, value, aval)
        try:
            return consume_with_handlers(self.execute_sharded(args), self.handlers)
        except jaxlib.JaxRuntimeError as error:
            raise self._owner.translate(error, self.device) from error

    def _check(self, position: int, value: Array, want: Aval) -> None:
        # jaxlib compares only sizes in bytes, and ends the process for another device's array.
        if not isinstance(value, jaxlib.ArrayImpl):
            raise TypeError(f"operand {position} is a {type(value).__name__}, not a device array")
        if value.is_deleted():
            raise DonatedTensor(f"operand {position} was donated to an earlier program")
        got = Aval(tuple(value.aval.shape), dtypes.FROM_NUMPY[value.aval.dtype])
        if got != want:
            raise TypeError(f"operand {position} is {got}, the program takes {want}")
        where = self._owner.index_of(value)
        if where != self.device:
            raise ValueError(
                f"operand {position} is on tpu:{where}, the program runs on tpu:{self.device}: "
                "copy it there first"
            )


class Client:
    """The devices of this process. Use `client()`; there is one.

    platform: "cpu" or "tpu". is_plugin: reached through the PJRT C API. synchronous: results are
    ready when an execution returns. compiles: programs XLA compiled; the cache's do not count.
    """

    def __init__(self, choice: Choice) -> None:
        self.pid = os.getpid()
        self.is_plugin = choice.library is not None
        self.plugin = "" if choice.library is None else choice.library.name
        self.synchronous = not self.is_plugin
        cache.environment()  # as XLA reads it, when the client starts
        self._client = _start(choice)
        self.platform: str = self._client.platform
        self.devices: list[Any] = self._client.local_devices()
        self.shardings = [jaxlib.Sharding(device) for device in self.devices]
        self._lists = [jaxlib.DeviceList((device,)) for device in self.devices]
        self._indices = {device: index for index, device in enumerate(self.devices)}
        self._refused_options: set[str] = set()
        self._counting = threading.Lock()
        self.compiles = 0
        self.versions = _versions(choice, self._client, self.devices[0])

    def compile(
        self,
        text: str,
        device: int,
        options: Mapping[str, object] = {},
        host_callbacks: Sequence[Any] = (),
    ) -> Executable:
        """Load a StableHLO module with a public @main on a device. Releases the GIL.

        options: XLA options by name, over this package's. host_callbacks: for a program that
        calls Python back; such a program never enters the executable cache.
        """
        if has_python_callback(text) and not host_callbacks:
            raise Unsupported(
                "compile",
                "the program calls Python back, and no callbacks were given",
                "pass the host_callbacks it was lowered with, which must outlive it",
            )
        avals = signature(text)
        ours = cpu_options(text) if self.platform == "cpu" else {}
        while True:
            known = without(ours, self._refused_options)
            try:
                loaded = self._load(text, device, {**known, **options}, host_callbacks)
                return Executable(self, device, avals, loaded)
            except jaxlib.JaxRuntimeError as error:
                name = refused_option(str(error))
                if name is None:
                    raise self.translate(error, device) from error
                if name in options or name not in known:
                    raise ValueError(f"option {name!r}: {error}") from error
                self._leave_out(name)

    def _leave_out(self, name: str) -> None:
        self._refused_options.add(name)
        level = logging.WARNING if keeps_values_right(name) else logging.DEBUG
        log.log(level, "this XLA refuses the option %s: programs are compiled without it", name)

    def _load(
        self, text: str, device: int, options: dict[str, object], host_callbacks: Sequence[Any]
    ) -> Any:
        compile_options = jaxlib.compile_options(options, self.devices[device].id)
        devices = self._lists[device]
        if host_callbacks:
            # Loaded from a cache, such a program would jump into memory that is not there.
            self._count_compile()
            module = jaxlib.parse(text)
            return self._client.compile_and_load(module, devices, compile_options, host_callbacks)
        key = cache.key(text, options, self.versions)
        if (blob := cache.load(key)) is not None:
            try:
                return self._client.deserialize_executable(blob, devices, compile_options)
            except jaxlib.JaxRuntimeError as error:
                cache.reject(key, str(error))
        loaded = self._client.compile_and_load(text, devices, compile_options)
        self._count_compile()
        if key is not None and (made := jaxlib.serialize(loaded)) is not None:
            cache.store(key, made)
        return loaded

    def _count_compile(self) -> None:
        with self._counting:
            self.compiles += 1

    def put(self, array: np.ndarray, device: int) -> Array:
        """Copy a host array of any strides to a device. The array is free when this returns."""
        if array.dtype not in dtypes.FROM_NUMPY:  # jaxlib takes big-endian bytes as they are
            known = ", ".join(str(row.numpy) for row in dtypes.TABLE)
            raise Unsupported("put", f"numpy dtype {array.dtype}", f"convert it to one of {known}")
        try:
            return jaxlib.put(array, self.devices[device], self.shardings[device])
        except jaxlib.JaxRuntimeError as error:
            raise self.translate(error, device) from error

    def staging(self, dtype: np.dtype, count: int, device: int) -> tuple[Array, int] | None:
        """A device array of `count` elements in host memory, and its address.

        Whoever writes to the address between executions changes the array. None where that is not
        so: with a plugin. Never donate it.
        """
        if self.is_plugin:
            return None
        memory = _aligned(dtype, count)
        value = jaxlib.put_in_place(memory, self.devices[device], self.shardings[device])
        address = memory.ctypes.data
        return (value, address) if jaxlib.host_pointer(value) == address else None

    def to_host(self, value: Array) -> np.ndarray:
        """A new host array with a device array's bytes. Waits for them."""
        try:
            if self.is_plugin:
                return jaxlib.to_numpy(value)
            source = jaxlib.host_pointer(value)
        except jaxlib.JaxRuntimeError as error:
            raise self.translate(error, self.index_of(value)) from error
        array = np.empty(value.aval.shape, value.aval.dtype)
        if array.nbytes:
            ctypes.memmove(array.ctypes.data, source, array.nbytes)
        return array

    def host_pointer(self, value: Array) -> int:
        """Address of the row-major bytes, valid while value is alive and not donated. Waits.

        Only for the embedded CPU client: elsewhere the host cannot read device memory.
        """
        if self.is_plugin:
            raise Unsupported("host_pointer", "device memory of a plugin", "use to_host")
        try:
            return jaxlib.host_pointer(value)
        except jaxlib.JaxRuntimeError as error:
            raise self.translate(error, self.index_of(value)) from error

    def copy_to_device(self, value: Array, device: int) -> Array:
        """A copy of a device array on another (or the same) device."""
        try:
            return jaxlib.copy_to_device(value, self._lists[device], self.shardings[device])
        except jaxlib.JaxRuntimeError as error:
            raise self.translate(error, device) from error

    def index_of(self, value: Array) -> int:
        """The index of the device a device array is on."""
        return self._indices[jaxlib.device_of(value)]

    def device_description(self, device: int) -> DeviceDescription:
        kind = self.devices[device].device_kind
        stats = self.memory_stats(device)
        if not self.is_plugin:
            host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return DeviceDescription("XLA CPU", kind, host)
        return DeviceDescription(kind, kind, stats.get("bytes_limit"))

    def memory_stats(self, device: int) -> dict[str, int]:
        """The runtime's own figures; empty on the CPU, where it keeps none."""
        try:
            return dict(self.devices[device].memory_stats() or {})
        except jaxlib.JaxRuntimeError:
            return {}

    def translate(self, error: Exception, device: int) -> Exception:
        """The exception to raise for one met while using a device; ours come back as they are."""
        if not isinstance(error, jaxlib.JaxRuntimeError):
            return error
        in_use = self.memory_stats(device).get("bytes_in_use")
        return pjrt_errors.translate(error, f"tpu:{device}", in_use)


def _aligned(dtype: np.dtype, count: int) -> np.ndarray:
    """Zeros where XLA can use them without a copy."""
    raw = np.zeros(count * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count * dtype.itemsize].view(dtype)


def _start(choice: Choice) -> Any:
    if choice.library is None:
        # Ready when the call returns: measured faster than a thread for everything small.
        return jaxlib.make_cpu_client(asynchronous=False, num_devices=choice.cpu_devices)
    if choice.plugin_name == "tpu" and not chip_present():
        # libtpu would ask the cloud's metadata server for minutes before it says there is no chip.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    try:
        jaxlib.open_plugin(choice.plugin_name, choice.library)
        return jaxlib.make_plugin_client(choice.plugin_name)
    except OSError as error:
        raise pjrt_errors.plugin_will_not_load(choice.library, error) from error
    except jaxlib.JaxRuntimeError as error:
        raise pjrt_errors.plugin_will_not_start(choice.library, error) from error


def _versions(choice: Choice, started: Any, device: Any) -> dict[str, str]:
    """What an executable depends on beyond its text and options."""
    found = {
        "jaxlib": jaxlib.installed("jaxlib"),
        "jaxlib build": jaxlib.build(),
        "platform": started.platform,
        "platform_version": started.platform_version,
        "device_kind": device.device_kind,
    }
    if choice.library is not None:
        file = choice.library.stat()
        found["plugin"] = f"{choice.library.name} {file.st_size} {file.st_mtime_ns}"
    return found


_SELF_TEST = """module {
  func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>)
      -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""


def _self_test(started: Client) -> None:
    """The calls everything else is made of, on four numbers."""
    step = "a copy to the device"
    try:
        array = np.arange(4, dtype=np.float32)
        operands = [started.put(array, 0), started.put(array, 0)]
        step = "compiling an addition"
        program = started.compile(_SELF_TEST, 0)
        step = "running it"
        [result] = program(operands)
        step = "a copy to the host"
        got = started.to_host(result)
        if not np.array_equal(got, 2 * array) or not operands[0].is_deleted():
            raise AssertionError(f"expected [0, 2, 4, 6] in donated memory, got {got.tolist()}")
    except Exception as error:
        raise jaxlib.version_mismatch(step, error, started.plugin) from error


_the_client: Client | None = None
_starting = threading.Lock()


def client() -> Client:
    """This process's client, started on first use.

    Raises RuntimeError in a forked child and for a plugin that gives no client, VersionMismatch
    if the self-test fails.
    """
    global _the_client
    if _the_client is None:
        with _starting:
            if _the_client is None:
                started = Client(choose())
                _self_test(started)
                started.compiles = 0
                _the_client = started
    if _the_client.pid != os.getpid():
        raise pjrt_errors.forked()
    return _the_client


def device_count() -> int:
    """Devices there are; starts a client only where a plugin must be asked."""
    if _the_client is not None:
        return len(_the_client.devices)
    choice = choose()
    return choice.cpu_devices if choice.library is None else len(client().devices)


def shutdown() -> None:
    """Forget the client; it ends with the last array and executable that use it."""
    global _the_client
    _the_client = None
