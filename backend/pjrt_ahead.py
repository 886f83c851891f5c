"""Compiling for a TPU that is not here: libtpu's compiler on a described topology.

For a subprocess that may die: libtpu can abort on a program, and takes process-wide flags. Its
environment needs ALLOW_MULTIPLE_LIBTPU_LOAD=1 and TPU_SKIP_MDS_QUERY=1 before libtpu is loaded.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_kernels.backend import pjrt_errors
from tpu_kernels.backend import pjrt_jaxlib as jaxlib
from tpu_kernels.backend.pjrt_choice import libtpu_path


@dataclass(frozen=True)
class AheadOfTime:
    """A program compiled for one device of a topology.

    executable: libtpu's serialized form. memory: bytes by kind (argument, output, temp, alias,
    peak_memory, ...). cost: the compiler's estimates (flops, bytes accessed, ...). hlo: the
    optimized HLO, "" where this jaxlib cannot print what this libtpu made.
    """

    executable: bytes
    memory: dict[str, int]
    cost: dict[str, float]
    versions: dict[str, str]
    hlo: str


def compile_ahead_of_time(
    text: str, topology: str, options: Mapping[str, object] = {}
) -> AheadOfTime:
    """Compile a StableHLO module for the first device of a topology such as "v5e:2x2".

    options: XLA options by name. Raises DeviceOutOfMemory if it does not fit, RuntimeError with
    the compiler's words for what it refuses.
    """
    described = _topology(topology)
    device = described._make_compile_only_devices()[0]
    try:
        executable = device.client.compile(
            jaxlib.parse(text),
            jaxlib.DeviceList((device,)),
            jaxlib.compile_options(options, device.id),
        )
    except jaxlib.JaxRuntimeError as error:
        raise pjrt_errors.translate(error, topology) from error
    return AheadOfTime(
        executable=executable.serialize(),
        memory=jaxlib.memory_analysis(executable),
        cost=dict(executable.cost_analysis()),
        versions={
            "jaxlib": jaxlib.installed("jaxlib"),
            "libtpu": jaxlib.installed("libtpu"),
            "platform_version": described.platform_version,
            "device_kind": device.device_kind,
        },
        hlo=jaxlib.hlo_text(executable),
    )


def _topology(name: str) -> Any:
    library = Path(os.environ.get("TPU_LIBRARY_PATH") or libtpu_path())
    try:
        jaxlib.open_plugin("tpu", library)
    except OSError as error:
        raise pjrt_errors.plugin_will_not_load(library, error) from error
    except jaxlib.JaxRuntimeError as error:
        raise pjrt_errors.plugin_will_not_start(library, error) from error
    extents = re.findall(r"\d+", name.partition(":")[2])
    one_chip = math.prod(map(int, extents)) == 1
    try:
        # libtpu takes a host to hold four chips, and refuses a topology with fewer.
        bounds = {"chips_per_host_bounds": [1, 1, 1]} if one_chip else {}
        return jaxlib.make_topology(name, bounds)
    except jaxlib.JaxRuntimeError as error:
        raise ValueError(
            f"no topology {name!r}: use a name such as v5e:2x2, v5p:2x2x1, v6e:2x2 or "
            f"tpu7x:2x2x1. libtpu says: {error}"
        ) from error
