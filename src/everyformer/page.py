"""A page as a value: written, opened, or shown in a notebook."""

import html
import os
import tempfile
import webbrowser
from dataclasses import dataclass
from pathlib import Path

FRAME_HEIGHT = 760
"""Pixels of the frame in a notebook."""


@dataclass(frozen=True, repr=False)
class Page:
    """A self-contained HTML page.

    Attributes:
        html: The whole file.
        title: What it shows.
    """

    html: str
    title: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file."""
        place = Path(path)
        place.write_text(self.html, encoding="utf-8")
        return place

    def in_temporary_place(self) -> Path:
        """Write it to a new temporary folder."""
        return self.save(Path(tempfile.mkdtemp(prefix="everyformer-")) / "page.html")

    def open(self) -> Path:
        """Write it to a temporary place, and open it in the browser."""
        place = self.in_temporary_place()
        webbrowser.open(place.as_uri())
        return place

    def _repr_html_(self) -> str:
        """In a notebook: a frame that shares nothing with what is around it."""
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" width="100%" '
            f'height="{FRAME_HEIGHT}" style="border:0" title="{html.escape(self.title)}" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        size = len(self.html) / 1024
        return f"<page {self.title!r}, {size:,.0f} KiB; .save(path) or .open()>"
