"""The long description for package indexes: the README without what leads nowhere there. All else is in pyproject.toml.

A relative link or picture works where the repository is shown, but not on a package index. If `project.urls` in
pyproject.toml has `Source`, they are made absolute; until then a link becomes its text, and a picture is left out.
"""

import re
import runpy
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
RELATIVE = r"(?![a-z]+:|#|//)"
LINK = re.compile(rf"(?<!!)\[([^\]]*)\]\({RELATIVE}([^)\s]+)\)")
PICTURE = re.compile(
    rf"!\[[^\]]*\]\({RELATIVE}([^)\s]+)\)"
    rf"|<picture\b(?:(?!</picture>).)*\bsrc=\"{RELATIVE}([^\"]+)\".*?</picture>"
    rf"|<img\b[^>]*\bsrc=\"{RELATIVE}([^\"]+)\"[^>]*>",
    re.DOTALL,
)


def long_description(readme: str, source: str, version: str) -> str:
    """The text `readme` with absolute links and pictures; without them if `source`, the repository's URL, is empty."""
    at = "HEAD" if "dev" in version else f"v{version}"

    def picture(match: re.Match[str]) -> str:
        return f"![]({source}/raw/{at}/{match[1] or match[2] or match[3]})" if source else ""

    text = PICTURE.sub(picture, readme)
    text = LINK.sub(rf"[\1]({source}/blob/{at}/\2)" if source else r"\1", text)
    pages = "" if source else "\nThe pages that this text names are in the folder `docs` of the source distribution.\n"
    return re.sub(r"\n{3,}", "\n\n", text) + pages


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    setup(
        long_description=long_description(
            (ROOT / "README.md").read_text("utf-8"),
            project.get("urls", {}).get("Source", "").rstrip("/"),
            runpy.run_path(str(ROOT / "reflectkit/version.py"))["VERSION"],
        ),
        long_description_content_type="text/markdown",
    )
