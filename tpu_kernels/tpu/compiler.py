"""`torch.tpu.compiler`: how programs are compiled."""

from tpu_kernels.backend.compiler_options import custom_compiler_options

__all__ = ["custom_compiler_options"]
