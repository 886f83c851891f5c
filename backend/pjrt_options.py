"""XLA options of a compile on the CPU client: right first, then cheap.

Measured with jaxlib 0.10.2 on one core, milliseconds to compile and microseconds to run:

    elements          XLA's defaults   no fusion emitters   and no LLVM optimisation
    softmax    128     218  10.6         110   6.6            21    7.7
    add        256      39   5.3          23   5.2            12    5.7
    transpose  4 K      53   6.5          29   7.7            17   11.5
    transpose 16 K      57  15.3          32  31.8            12   30.3
    tanh      16 K      38  14.1          34  14.0            13  340

All three give the same accuracy (at most 5 ulp for every unary function of StableHLO).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

# XLA's own defaults may lose a NaN in minimum and maximum, and the rounding to bfloat16 between
# two operations of one program.
_EXACT: dict[str, object] = {
    "xla_cpu_enable_fast_min_max": False,
    "xla_allow_excess_precision": False,
}
# The library that XLA hands large reductions to loses every NaN of a maximum and of a minimum; its
# products and convolutions are right, and it sums four times faster than XLA's own code.
_EXACT_EXTREMA: dict[str, object] = {
    "xla_cpu_experimental_ynn_fusion_type": (
        "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
    )
}
# Splitting a module for a parallel compile pays for itself only when the module is long.
_ONE_PART: dict[str, object] = {"xla_cpu_parallel_codegen_split_count": 1}
_LEGACY_EMITTERS: dict[str, object] = {"xla_cpu_use_fusion_emitters": False}
_UNOPTIMIZED: dict[str, object] = {"xla_backend_optimization_level": 0}

_TINY = 128
_SMALL = 4096
_LONG_TEXT = 20_000

_DIMENSIONS = re.compile(r"tensor<((?:\d+x)+)")
_EXTREMUM = re.compile(r"stablehlo\.(?:maximum|minimum)")
# The fusion emitters run a scatter four times faster; the old ones unroll a whole reduction, and
# take two seconds for 4096 elements.
_FOR_FUSION_EMITTERS = re.compile(r"stablehlo\.(?:scatter|reduce)")
_LOOPS = re.compile(r"stablehlo\.(?:while|sort|fft|custom_call|cholesky|triangular_solve)|chlo\.")


def largest_tensor(text: str) -> int:
    """Elements of the largest tensor type a module's text names."""
    shapes = set(_DIMENSIONS.findall(text))
    return max((math.prod(map(int, dims.split("x")[:-1])) for dims in shapes), default=1)


def cpu_options(text: str) -> dict[str, object]:
    """The options for this module, by name. Those the installed XLA lacks are left out later."""
    options: dict[str, object] = dict(_EXACT)
    if "stablehlo.reduce" in text and _EXTREMUM.search(text):
        options |= _EXACT_EXTREMA
    if len(text) < _LONG_TEXT:
        options |= _ONE_PART
    elements = largest_tensor(text)
    if elements <= _SMALL and not _FOR_FUSION_EMITTERS.search(text):
        options |= _LEGACY_EMITTERS
    if elements <= _TINY and not _LOOPS.search(text):
        options |= _LEGACY_EMITTERS | _UNOPTIMIZED
    return options


def refused_option(message: str) -> str | None:
    """The option that, by XLA's error, does not exist or does not take the value."""
    found = re.search(r"(?:No such compile option: '|While setting option )(\w+)", message)
    return found and found.group(1)


def keeps_values_right(name: str) -> bool:
    """Does leaving this option out change results, and not only cost?"""
    return name in _EXACT or name in _EXACT_EXTREMA


def without(options: Mapping[str, object], names: set[str]) -> dict[str, object]:
    return {name: value for name, value in options.items() if name not in names}
