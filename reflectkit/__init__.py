"""reflectkit: train small language models to act, with a reflection model that comments and a policy that acts on it.

Each env is registered with gymnasium where that is imported before this package, and else by importing
`reflectkit.integrations.gym`; by itself this package imports nothing but its version.
"""

from __future__ import annotations

import sys

from reflectkit.version import VERSION

__version__ = VERSION
__all__ = ["__version__"]

if "gymnasium" in sys.modules:
    import reflectkit.integrations.gym  # noqa: F401  `import gymnasium, reflectkit` is enough
