"""The signature of a StableHLO module, read from its text."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from tpu_kernels.backend import dtypes
from tpu_kernels.errors import Unsupported

_DTYPES = {row.hlo: row.torch for row in dtypes.TABLE}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')
_ARROW = re.compile(r"\s*->\s*")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)((?:complex<\w+>|\w+))>")
_TYPE = re.compile(r"tensor<|!stablehlo\.token|tuple<")
_PYTHON_CALLBACK = re.compile(r"python_\w*callback")


@dataclass(frozen=True)
class Aval:
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def signature(text: str) -> tuple[list[Aval], list[Aval]]:
    """The operands and the results of @main."""
    start = text.find("@main(")
    if start < 0:
        raise ValueError("a program must be a StableHLO module with a public @main")
    start += len("@main")
    end = _closing(text, start)
    arrow = _ARROW.match(text, end)
    if arrow is None:
        return _avals(text[start:end]), []
    first = arrow.end()
    last = _closing(text, first) if text[first] == "(" else text.index("{", first)
    return _avals(text[start:end]), _avals(text[first:last])


def _closing(text: str, start: int) -> int:
    """Past the bracket that closes the one at start; brackets in strings do not count."""
    depth = 0
    for token in _BRACKET.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(token.group(), 0)
        if depth == 0:
            return token.end()
    raise ValueError("unbalanced parentheses in the signature of @main")


def _avals(types: str) -> list[Aval]:
    types = _STRING.sub("", types)
    found = _TENSOR.findall(types)
    if len(found) != len(_TYPE.findall(types)):
        raise Unsupported("@main", f"an operand or result is not a static tensor: {types}")
    return [Aval(_shape(dims), _dtype(element)) for dims, element in found]


def _shape(dims: str) -> tuple[int, ...]:
    return tuple(map(int, dims.split("x")[:-1]))


def _dtype(element: str) -> torch.dtype:
    if element not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise Unsupported("@main", f"element type {element} has no torch dtype", f"use {known}")
    return _DTYPES[element]


def has_python_callback(text: str) -> bool:
    """Does the program call back into this process's Python?"""
    return _PYTHON_CALLBACK.search(text) is not None
