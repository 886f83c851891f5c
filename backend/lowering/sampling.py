"""Resizing by nearest, linear and cubic interpolation, and its gradients.

Each is linear and separable: along one dimension, every result is a few operands times weights
known beforehand. `Rows` says which; the gradient has the transposed rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np
import torch

from .. import hlo
from ..hlo import Value
from ..registry import lower
from .windows import add, along, fold_ragged, take

aten = torch.ops.aten

Row = dict[int, float]  # operand index: weight
Rows = list[Row]
# (operand size, result size, scale as the user gave it, align_corners) to rows. Coordinates are
# computed in the float type that torch uses, so that they round alike.
Kernel = Callable[[int, int, float | None, bool, type], Rows]


def resample(x: Value, dim: int, rows: Rows) -> Value:
    """y[o] = sum of rows[o][i] * x[i] along `dim`."""
    weights = {weight for row in rows for weight in row.values()}
    indices = [sorted(row) for row in rows]
    if len(weights) == 1 and all(i == list(range(i[0], i[-1] + 1)) for i in indices if i):
        bounds = [(i[0], i[-1] + 1) if i else (0, 0) for i in indices]
        starts, stops = (list(each) for each in zip(*bounds, strict=True))
        zero = hlo.constant(0, x.dtype)
        (total,) = fold_ragged((x,), dim, starts, stops, (zero,), add)
        return _weighted(total, [weights.pop()] * len(rows), dim)
    taps = []
    for tap in range(max(map(len, indices))):
        index = [i[tap] if tap < len(i) else 0 for i in indices]
        weight = [
            row[i[tap]] if tap < len(i) else None for row, i in zip(rows, indices, strict=True)
        ]
        taps.append(_weighted(take(x, dim, index), weight, dim))
    return reduce(hlo.add, taps)


def _weighted(x: Value, weights: Sequence[float | None], dim: int) -> Value:
    """x times a weight for each index of `dim`; None is zero whatever x is there."""
    given = [0.0 if weight is None else weight for weight in weights]
    y = x if set(given) == {1.0} else hlo.multiply(x, along(given, x, dim))
    if None not in weights:
        return y
    used = hlo.array(torch.tensor([weight is not None for weight in weights]))
    return hlo.select(hlo.broadcast_in_dim(used, y.shape, [dim]), y, hlo.zeros_like(y))


def _transposed(rows: Rows, size: int) -> Rows:
    columns: Rows = [{} for _ in range(size)]
    for o, row in enumerate(rows):
        for i, weight in row.items():
            columns[i][o] = weight
    return columns


# Kernels.


def _ratio(size: int, result: int, scale: float | None, align_corners: bool, real: type) -> float:
    """Operand steps for one step of the result."""
    if align_corners:
        return real(size - 1) / real(result - 1) if result > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(size) / real(result)


def nearest(
    size: int, result: int, scale: float | None, _: bool, real: type, centre: float = 0.0
) -> Rows:
    ratio = _ratio(size, result, scale, False, real)
    return [{min(int(real(real(o) + real(centre)) * ratio), size - 1): 1.0} for o in range(result)]


def _source(o: int, ratio: float, align_corners: bool, real: type) -> float:
    return ratio * real(o) if align_corners else ratio * (real(o) + real(0.5)) - real(0.5)


def linear(size: int, result: int, scale: float | None, align_corners: bool, real: type) -> Rows:
    ratio = _ratio(size, result, scale, align_corners, real)
    rows = []
    for o in range(result):
        source = max(_source(o, ratio, align_corners, real), real(0))
        first = min(int(source), size - 1)
        weight = float(min(max(source - real(first), real(0)), real(1)))
        rows.append(_row([first, min(first + 1, size - 1)], [1 - weight, weight]))
    return rows


def _row(indices: Sequence[int], weights: Sequence[float]) -> Row:
    row: Row = {}
    for index, weight in zip(indices, weights, strict=True):
        row[index] = row.get(index, 0.0) + weight
    return row


def _cubic(distance: float, a: float) -> float:
    """Keys' cubic convolution kernel."""
    x = abs(distance)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def cubic(size: int, result: int, scale: float | None, align_corners: bool, real: type) -> Rows:
    ratio = _ratio(size, result, scale, align_corners, real)
    rows = []
    for o in range(result):
        source = _source(o, ratio, align_corners, real)
        first = math.floor(source)
        around = range(first - 1, first + 3)
        weights = [_cubic(float(source) - i, -0.75) for i in around]
        rows.append(_row([min(max(i, 0), size - 1) for i in around], weights))
    return rows


def antialiased(
    size: int,
    result: int,
    scale: float | None,
    align_corners: bool,
    real: type,
    *,
    reach: int,
    shape: Callable[[float], float],
) -> Rows:
    """A kernel of half-width `reach`, stretched over all operands that a smaller result spans."""
    ratio = float(_ratio(size, result, scale, align_corners, real))
    stretch = max(ratio, 1.0)
    rows = []
    for o in range(result):
        centre = ratio * (o + 0.5)
        first = max(int(centre - reach * stretch + 0.5), 0)
        last = min(int(centre + reach * stretch + 0.5), size)
        weights = [shape((i - centre + 0.5) / stretch) for i in range(first, last)]
        total = sum(weights)
        rows.append(_row(range(first, last), [weight / total for weight in weights]))
    return rows


def _triangle(x: float) -> float:
    return max(1 - abs(x), 0.0)


# Rows of the table.


def _all_rows(kernel: Kernel, sizes: Sequence[int], given: dict, dtype: torch.dtype) -> list[Rows]:
    """The rows of each resized dimension, the last ones of the operand."""
    scales = [value for name, value in given.items() if name.startswith("scales")]
    real = np.float64 if dtype is torch.float64 else np.float32
    align = bool(given.get("align_corners"))
    return [
        kernel(size, result, scale, align, real)
        for size, result, scale in zip(sizes, given["output_size"], scales, strict=True)
    ]


def upsample(kernel: Kernel) -> Callable[..., Value]:
    def lowered(*, self: Value, **given: object) -> Value:
        rounds = not (self.dtype.is_floating_point or kernel in (nearest, nearest_exact))
        x = hlo.convert(self, torch.float32) if rounds else hlo.opmath(self)
        for dim, rows in enumerate(_all_rows(kernel, x.shape[2:], given, self.dtype), 2):
            x = resample(x, dim, rows)
        if not rounds:
            return x
        info = torch.iinfo(self.dtype)
        low, high = (hlo.constant(bound, x.dtype) for bound in (info.min, info.max))
        return hlo.convert(hlo.clamp(low, hlo.round_nearest_afz(x), high), self.dtype)

    return lowered


def upsample_backward(kernel: Kernel) -> Callable[..., Value]:
    def lowered(*, grad_output: Value, input_size: Sequence[int], **given: object) -> Value:
        sizes = input_size[2:]
        grad = hlo.opmath(grad_output)
        for dim, rows in enumerate(_all_rows(kernel, sizes, given, grad_output.dtype), 2):
            grad = resample(grad, dim, _transposed(rows, input_size[dim]))
        return grad

    return lowered


nearest_exact = partial(nearest, centre=0.5)

_KERNELS: dict[str, Kernel] = {
    "upsample_nearest1d": nearest,
    "upsample_nearest2d": nearest,
    "upsample_nearest3d": nearest,
    "_upsample_nearest_exact1d": nearest_exact,
    "_upsample_nearest_exact2d": nearest_exact,
    "_upsample_nearest_exact3d": nearest_exact,
    "upsample_linear1d": linear,
    "upsample_bilinear2d": linear,
    "upsample_trilinear3d": linear,
    "upsample_bicubic2d": cubic,
    "_upsample_bilinear2d_aa": partial(antialiased, reach=1, shape=_triangle),
    "_upsample_bicubic2d_aa": partial(antialiased, reach=2, shape=partial(_cubic, a=-0.5)),
}
for _name, _kernel in _KERNELS.items():
    lower(getattr(aten, _name), upsample(_kernel))
    lower(getattr(aten, f"{_name}_backward"), upsample_backward(_kernel))
