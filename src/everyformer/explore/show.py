"""The page of a network, with its target and its certificate where they are known."""

from typing import Any

from everyformer.certify.certificate import Certificate
from everyformer.construct.pipeline import Built
from everyformer.errors import EveryformerError, printable
from everyformer.explore.certificate_data import certificate_data
from everyformer.explore.function_data import function_data
from everyformer.explore.inline import PAGE, page
from everyformer.explore.links import NO_LINKS
from everyformer.explore.links import Links as Links
from everyformer.explore.network_data import network_data
from everyformer.explore.page_file import Page as Page
from everyformer.files.strict_json import read_json
from everyformer.model.network import Network
from everyformer.targets.target import Target


def explore(shown: Network | Built, links: Links = NO_LINKS) -> Page:
    """The page of a network; with its target and certificate, if it was just built.

    Raises:
        MemoryLimitError: If it is too large for a page.
        NumberKindError: If its weights are rationals that float64 cannot hold.
    """
    if isinstance(shown, Network):
        return network_page(shown, links=links)
    data = network_data(shown.network, links)  # first: it refuses what is too large
    try:
        certificate = shown.certificate
    except EveryformerError:
        certificate = None
    return _page(data, shown.network, shown.target, certificate)


def network_page(
    network: Network,
    target: Target | None = None,
    certificate: Certificate | None = None,
    links: Links = NO_LINKS,
) -> Page:
    """The page of a network, with what is known of it."""
    return _page(network_data(network, links), network, target, certificate)


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
