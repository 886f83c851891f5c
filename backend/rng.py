"""Random numbers of one recorded call: counter-based, from a seed and an offset operand.

The bits are Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) as
StableHLO's rng_bit_generator computes it, so equal seed and offset give equal numbers anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import hlo
from .hlo import Value

_BITS = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32, 64: torch.uint64}
_BLOCK = 128  # bits that one step of the counter yields


class Rng:
    """Draws for one call. `used` is how far the call moves the generator's offset."""

    def __init__(self, seed: Value, offset: Value) -> None:
        self.seed, self.offset = seed, offset
        self.used = 0

    def bits(self, shape: Sequence[int], width: int = 32) -> Value:
        """Independent uniform bits: an unsigned value of 8, 16, 32 or 64 bits an element."""
        counter = hlo.add(self.offset, hlo.constant(self.used, torch.int64))
        words = [
            hlo.reshape(hlo.bitcast_convert(x, torch.uint64), (1,)) for x in (self.seed, counter)
        ]
        self.used += max(1, -(-hlo.numel(shape) * width // _BLOCK))
        drawn = max(width, 32)
        bits = hlo.rng_bit_generator(hlo.concatenate(words), shape, _BITS[drawn])
        return hlo.convert(bits, _BITS[width])

    def uniform(self, shape: Sequence[int], dtype: torch.dtype) -> Value:
        """Uniform in [0, 1), every value a multiple of the spacing just below 1."""
        width, digits = (64, 53) if dtype is torch.float64 else (32, 24)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        bits = self.bits(shape, width)
        shift = hlo.constant(width - digits, bits.dtype, bits.shape)
        top = hlo.convert(hlo.shift_right_logical(bits, shift), wide)
        return hlo.multiply(top, hlo.full_like(top, 2.0**-digits))

    def normal(self, shape: Sequence[int], dtype: torch.dtype) -> Value:
        """Standard normal, by the inverse error function of a uniform in (-1, 1)."""
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        u = self.uniform(shape, wide)
        tiny = 2.0**-53 if wide is torch.float64 else 2.0**-24
        centred = hlo.subtract(hlo.multiply(u, hlo.full_like(u, 2)), hlo.full_like(u, 1 - tiny))
        return hlo.multiply(hlo.erf_inv(centred), hlo.full_like(u, 2**0.5))
