"""The generators of the device's streams of random numbers.

A state is 16 bytes: seed and offset. Equal states give equal numbers on every platform.
"""

from __future__ import annotations

import torch

from . import device as _device

_pending_seed: int | None = None  # asked for before the core was loaded


def default_generator(index: int = 0) -> torch.Generator:
    """The generator that random ops use when none is given."""
    global _pending_seed
    core = _device.load_core()
    assert core is not None
    generator = core.default_generator(index)
    if _pending_seed is not None:
        seed, _pending_seed = _pending_seed, None
        manual_seed_all(seed)
    return generator


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    if _device.core is None:
        manual_seed_all(seed)
    else:
        default_generator(_device.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator; torch.manual_seed calls this. Does not start the device."""
    global _pending_seed
    if _device.core is None:
        _pending_seed = int(seed)
        return
    for index in range(max(1, _device.device_count())):
        default_generator(index).manual_seed(int(seed))


def seed() -> int:
    """Seed the current device's generator from the operating system."""
    return default_generator(_device.current_device()).seed()


def seed_all() -> None:
    manual_seed_all(seed())


def initial_seed() -> int:
    return default_generator(_device.current_device()).initial_seed()


def get_rng_state(device: object = "tpu") -> torch.Tensor:
    """uint8[16] on the CPU."""
    return default_generator(_device.index_of(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: object = "tpu") -> None:
    default_generator(_device.index_of(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(_device.device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
