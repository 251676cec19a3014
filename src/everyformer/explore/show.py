"""Make a page of a network, write it, open it, or show it in a notebook."""

import html
import os
import tempfile
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyformer.certify.certificate import Certificate
from everyformer.construct.pipeline import Built
from everyformer.errors import EveryformerError, printable
from everyformer.explore.certificate_data import certificate_data
from everyformer.explore.function_data import function_data
from everyformer.explore.inline import PAGE, page
from everyformer.explore.network_data import network_data
from everyformer.files.strict_json import read_json
from everyformer.model.network import Network
from everyformer.targets.target import Target

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


def explore(shown: Network | Built) -> Page:
    """The page of a network; with its target and certificate, if it was just built.

    Raises:
        MemoryLimitError: If it is too large for a page.
        NumberKindError: If its weights are rationals that float64 cannot hold.
    """
    if isinstance(shown, Network):
        return network_page(shown)
    data = network_data(shown.network)  # first: it refuses what is too large
    try:
        certificate = shown.certificate
    except EveryformerError:
        certificate = None
    return _page(data, shown.network, shown.target, certificate)


def network_page(
    network: Network, target: Target | None = None, certificate: Certificate | None = None
) -> Page:
    """The page of a network, with what is known of it."""
    return _page(network_data(network), network, target, certificate)


def _page(
    data: dict[str, Any],
    network: Network,
    target: Target | None,
    certificate: Certificate | None,
) -> Page:
    known = network.construction or network.program
    name = "network" if known is None else printable(known.target)
    title = f"{name} · everyformer explorer"
    content = {
        "kind": "network",
        "title": name,
        "network": data,
        "function": function_data(target, certificate),
        "certificate": None if certificate is None else certificate_data(certificate),
        "tour": read_json((PAGE / "tour.json").read_bytes()),
    }
    return Page(page(content, title), title)
