"""The StableHLO vocabulary: typed values, shape rules, text out.

Functions emit into the current `Builder` (see `building`) and return a `Value`. They are strict:
operands must already agree in shape and dtype, as StableHLO asks. Promotion and broadcasting the
torch way belong to the registry.
"""
# ruff: noqa: F403

from .core import *
from .elementwise import *
from .indexing import *
from .linear import *
from .random import *
from .reduction import *
from .shape import *
