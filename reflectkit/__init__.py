"""reflectkit: train small language models to act, with a reflection model that comments and a policy that acts on it.

Importing `reflectkit.integrations.gym` registers each env with gymnasium; this package alone imports nothing but its version.
"""

from __future__ import annotations

from reflectkit.version import VERSION

__version__ = VERSION
__all__ = ["__version__"]
