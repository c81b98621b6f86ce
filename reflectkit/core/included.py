"""Files that come with the package, in a checkout and in an installed wheel alike: repositories to explore, and configs
for `accelerate launch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from reflectkit.core.errors import unknown_name

REPOSITORIES = Path("data/auto_explore/repos")
"""Where users put their own repositories. Where it is missing, the included ones are meant."""


def repositories_in(folder: Path) -> Path:
    """`folder`, or that of the included repositories if it is `REPOSITORIES` and there is none."""
    return included_repositories() if folder == REPOSITORIES and not folder.is_dir() else folder


def included_repositories() -> Path:
    """The folder of the included repositories."""
    return _package() / "boxed" / "repos"


def launch_config(name: str) -> Path:
    """The file of the config for `accelerate launch --config_file` called `name`. Raises UnknownNameError."""
    files = {path.stem: path for path in sorted((_package() / "configs").glob("*.yaml"))}
    if name not in files:
        raise unknown_name("config", name, files)
    return files[name]


def launch_configs() -> Mapping[str, str]:
    """The first line of each config for `accelerate launch --config_file`, by name."""
    names = sorted(path.stem for path in (_package() / "configs").glob("*.yaml"))
    return {name: launch_config(name).read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for name in names}


def _package() -> Path:
    return Path(str(resources.files("reflectkit")))
