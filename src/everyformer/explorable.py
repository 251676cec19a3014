"""`explore()`, for all that can be shown on a page.

A page needs the proof, its lemmas and the methods, so what makes it lies above all that it
shows. `everyformer/__init__.py`, which lies above everything, names the maker.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everyformer.page import Page

Place = str | os.PathLike[str]
Maker = Callable[[Any, str | None, str | None, Place | None], "Page"]
"""From what is shown, and the arguments of `explore`, to its page."""

_MAKERS = list[Maker]()


def makes_pages(maker: Maker) -> Maker:
    """Names the function that makes the page of every `Explorable`; the last one counts."""
    _MAKERS.append(maker)
    return maker


class Explorable:
    """What can be shown on a page that runs it in the browser."""

    def explore(
        self,
        *,
        site: str | None = None,
        code: str | None = None,
        tour: Place | None = None,
    ) -> "Page":
        """A page that runs the network in the browser.

        What was just built is shown with f and the certificate. In a notebook the page
        appears; elsewhere `save(path)` or `open()` it.

        Args:
            site: Address of the documentation, to which the page then links.
            code: Address of the files of the repository, likewise.
            tour: File of a guided tour of your own.

        Raises:
            InputError: If one of them is not the address of a page, or not a tour.
            MemoryLimitError: If the network has too many blocks for a page.
            NumberKindError: If its weights are rationals that float64 cannot hold.
        """
        return _MAKERS[-1](self, site, code, tour)
