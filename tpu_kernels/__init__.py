"""The "tpu" device for PyTorch, and kernels for it.

Importing this makes the device known to torch; `import torch` alone does so too where the package
is installed. Nothing is started until the device is used.
"""

from __future__ import annotations

import torch

from . import _autoload, cache
from .version import __version__ as __version__

__all__ = ["__version__", "cache"]

# While torch itself is being imported, its entry point decides.
if not getattr(torch.__spec__, "_initializing", False):
    _autoload.activate()
