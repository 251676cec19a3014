"""Where files of the repository are in the site."""

from pathlib import Path

PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files outside docs/ with a place of their own in the site."""

SHOWN_AS_CODE = {
    ".py": "python", ".toml": "toml", ".cff": "yaml", ".txt": "text", "": "text",
}  # fmt: skip
"""Files that are shown as pages, by suffix, with their language."""


def place_of(origin: str) -> str:
    """The place in the site of a file of the repository."""
    path = Path(origin)
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    if origin in PLACES:
        return PLACES[origin]
    if path.parts[0] == "examples" and path.suffix == ".py":
        return f"tutorials/{path.stem}.md"
    as_page = path.suffix != ".md" and path.suffix in SHOWN_AS_CODE
    return f"files/{origin}{'.md' * as_page}"
