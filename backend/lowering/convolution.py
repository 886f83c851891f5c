"""Convolution and its gradients, in any number of dimensions.

A convolution relates a large side (its input) to a small side (its output). Three linear maps say
all there is: `correlate` takes large to small, `spread` is its adjoint, and `correlate_kernel` is
the derivative by the kernel. A transposed convolution swaps the two sides; output_padding only
chooses the size of the large side, which the result's aval already tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from .. import hlo
from ..dtypes import OPMATH
from ..hlo import Value
from ..registry import Aval, lower

aten = torch.ops.aten


class Window(NamedTuple):
    """How the kernel moves over the large side: one entry a spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _window(
    rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Window:
    """From the schema's lists, in which one entry stands for all dimensions."""
    stride, padding, dilation = (
        tuple(x) * (rank if len(x) == 1 else 1) for x in (stride, padding, dilation)
    )
    if any(p < 0 for p in padding):
        raise ValueError(f"negative padding is not supported, got {list(padding)}")
    return Window(stride, padding, dilation, groups)


def correlate(large: Value, kernel: Value, window: Window) -> Value:
    """large: [n, i, *L], kernel: [o, i/groups, *K]; the result is the small side [n, o, *S]."""
    return _convolve(
        large,
        kernel,
        ("b, f", "o, i", "b, f"),
        strides=window.stride,
        padding=[(p, p) for p in window.padding],
        kernel_dilation=window.dilation,
        feature_groups=window.groups,
    )


def spread(small: Value, kernel: Value, window: Window, size: Sequence[int]) -> Value:
    """The adjoint of `correlate`: small [n, o, *S] to large [n, i, *size]."""
    outputs, inputs, *extents = kernel.shape
    groups = window.groups
    kernel = hlo.reshape(kernel, (groups, outputs // groups, inputs, *extents))
    kernel = hlo.transpose(kernel, (1, 0, *range(2, kernel.ndim)))
    kernel = hlo.reshape(kernel, (outputs // groups, groups * inputs, *extents))
    padding = []
    for n, m, k, s, p, d in zip(
        size, small.shape[2:], extents, window.stride, window.padding, window.dilation, strict=True
    ):
        low = d * (k - 1) - p
        padding.append((low, n + p - ((m - 1) * s + 1)))
    return _convolve(
        small,
        hlo.reverse(kernel, range(2, kernel.ndim)),
        ("b, f", "i, o", "b, f"),
        strides=(1,) * len(extents),
        padding=padding,
        base_dilation=window.stride,
        kernel_dilation=window.dilation,
        feature_groups=groups,
    )


def correlate_kernel(large: Value, small: Value, window: Window, size: Sequence[int]) -> Value:
    """The derivative of `correlate` by its kernel: [o, i/groups, *size]."""
    padding = []
    for n, m, k, s, p, d in zip(
        large.shape[2:],
        small.shape[2:],
        size,
        window.stride,
        window.padding,
        window.dilation,
        strict=True,
    ):
        padding.append((p, (k - 1) * d + (m - 1) * s + 1 - n - p))
    return _convolve(
        large,
        small,
        ("f, b", "i, o", "f, b"),
        strides=window.dilation,
        padding=padding,
        kernel_dilation=window.stride,
        batch_groups=window.groups,
    )


def _convolve(x: Value, kernel: Value, dims: tuple[str, str, str], **window: object) -> Value:
    """One StableHLO convolution; `dims` name the first two dimensions of the three tensors."""
    spatial = "".join(f", {i}" for i in range(x.ndim - 2))
    left, right, out = (f"[{pair}{spatial}]" for pair in dims)
    layout = f"{left}x{right}->{out}"

    def convolve(a: Value, b: Value) -> Value:
        wide = OPMATH.get(a.dtype, a.dtype)
        return hlo.convolution(a, b, layout=layout, dtype=wide, **window)  # type: ignore[arg-type]

    return _complex_product(convolve, x, kernel) if x.dtype.is_complex else convolve(x, kernel)


def _complex_product(product: Callable[[Value, Value], Value], x: Value, y: Value) -> Value:
    """A bilinear map of complex operands from the same map of their parts."""
    (a, b), (c, d) = ((hlo.real(z), hlo.imag(z)) for z in (x, y))
    real = hlo.subtract(product(a, c), product(b, d))
    return hlo.complex_(real, hlo.add(product(a, d), product(b, c)))


def convolution(
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    aval: Aval,
) -> Value:
    _same_dtype(input, weight)
    window = _window(input.ndim - 2, stride, padding, dilation, groups)
    if transposed:
        result = spread(input, weight, window, aval.shape[2:])
    else:
        result = correlate(input, weight, window)
    if bias is None:
        return result
    return hlo.add(result, hlo.broadcast_in_dim(hlo.convert(bias, result.dtype), result.shape, [1]))


def convolution_backward(
    grad_output: Value,
    input: Value,
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    bias_sizes: Sequence[int] | None = None,
) -> tuple[Value | None, Value | None, Value | None]:
    """The gradients of input, weight and bias that output_mask asks for."""
    window = _window(input.ndim - 2, stride, padding, dilation, groups)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0] and transposed:
        # An output_padding of a stride or more leaves grad_output elements that nothing reached.
        grad_input = correlate(grad_output, weight, window)
        grad_input = hlo.slice_(grad_input, [0] * input.ndim, input.shape)
    elif output_mask[0]:
        grad_input = spread(grad_output, weight, window, input.shape[2:])
    if output_mask[1]:
        large, small = (grad_output, input) if transposed else (input, grad_output)
        grad_weight = correlate_kernel(large, small, window, weight.shape[2:])
    if output_mask[2]:
        dims = [i for i in range(grad_output.ndim) if i != 1]
        grad_bias = hlo.reduce_sum(hlo.opmath(grad_output), dims)
    return grad_input, grad_weight, grad_bias


def _same_dtype(input: Value, weight: Value) -> None:
    if input.dtype != weight.dtype:
        raise RuntimeError(
            f"Input type ({input.dtype}) and weight type ({weight.dtype}) should be the same"
        )


lower(aten.convolution, convolution)
lower(aten.convolution_overrideable, convolution)
lower(aten.convolution_backward, convolution_backward)


lower(aten.convolution_backward_overrideable, lambda **arguments: convolution_backward(**arguments))
