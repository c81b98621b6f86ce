"""Links from pages to files outside the site become plain text: MkDocs would report them as broken."""

import re

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(research/[^)#]*|[A-Z]+\.md)[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page with such links replaced by the path in the repository."""

    def plain(match: re.Match[str]) -> str:
        text, path = match.groups()
        return f"`{path}`" if text.startswith("research/") or text == path else f"{text} (`{path}` in the repository)"

    return OUTSIDE.sub(plain, markdown)
