"""What each TPU generation is: one table, read by the ahead-of-time path and by block rules.

Peaks and HBM are the figures published for a chip (https://cloud.google.com/tpu/docs/v4, v5e, v5p,
v6e and tpu7x). The rest was read from libtpu 0.0.42.1: `devices` and `kind` from its description
of `topology`, VMEM and the scoped limit from its refusals of kernels that allocate more. VMEM
agrees with the table in jax 0.10.2's tpu_info.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Chip:
    """A TPU generation.

    kind: libtpu's name for a device. bf16_tflops: peak of a chip, 1e12 operations a second.
    hbm_bytes: of a chip. devices: how many a chip is. vmem_bytes: of a TensorCore.
    scoped_vmem_bytes: what one kernel may use of it unless it asks for more. topology: the
    smallest one that libtpu describes by default, for compiling without a chip.
    """

    name: str
    kind: str
    bf16_tflops: float
    hbm_bytes: int
    devices: int
    vmem_bytes: int
    scoped_vmem_bytes: int
    topology: str

    @property
    def device_hbm_bytes(self) -> int:
        return self.hbm_bytes // self.devices


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            name="v4",
            kind="TPU v4",
            bf16_tflops=275,
            hbm_bytes=32 * _GIB,  # libtpu leaves a program 15.25 GiB of a device's 16
            devices=2,  # as the topology lists them: one per TensorCore
            vmem_bytes=16 * _MIB,
            scoped_vmem_bytes=16 * _MIB,
            topology="v4:2x2x1",
        ),
        Chip(
            name="v5e",
            kind="TPU v5 lite",
            bf16_tflops=197,
            hbm_bytes=16 * _GIB,  # 15.75 GiB for a program
            devices=1,
            vmem_bytes=128 * _MIB,
            scoped_vmem_bytes=16 * _MIB,
            topology="v5e:2x2",
        ),
        Chip(
            name="v5p",
            kind="TPU v5",
            bf16_tflops=459,
            hbm_bytes=95 * _GIB,  # 95.74 GiB for a program: the published figure is rounded
            devices=1,  # two TensorCores that run one program
            vmem_bytes=64 * _MIB,
            scoped_vmem_bytes=16 * _MIB,
            topology="v5p:2x2x1",
        ),
        Chip(
            name="v6e",
            kind="TPU v6 lite",
            bf16_tflops=918,
            hbm_bytes=32 * _GIB,  # 31.25 GiB for a program
            devices=1,
            vmem_bytes=128 * _MIB,
            scoped_vmem_bytes=32 * _MIB,
            topology="v6e:2x2",
        ),
        Chip(
            name="tpu7x",
            kind="TPU7x",
            bf16_tflops=2307,
            hbm_bytes=192 * _GIB,  # 94.75 GiB for a program of a device's 96
            devices=2,
            vmem_bytes=64 * _MIB,
            scoped_vmem_bytes=32 * _MIB,
            topology="tpu7x:2x2x1",
        ),
    )
}


def chip(name: str) -> Chip:
    """The row of a generation such as "v5e". Raises ValueError naming those there are."""
    if name not in CHIPS:
        raise ValueError(f"no TPU generation {name!r}: use one of {', '.join(CHIPS)}")
    return CHIPS[name]
