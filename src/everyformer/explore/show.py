"""The page of a network, with its target and its certificate where they are known."""

import os
from typing import Any

from everyformer.certify.certificate import Certificate
from everyformer.construct.pipeline import Built
from everyformer.errors import EveryformerError, printable
from everyformer.explore.certificate_data import certificate_data
from everyformer.explore.function_data import function_data
from everyformer.explore.inline import page_of
from everyformer.explore.links import NO_LINKS
from everyformer.explore.links import Links as Links
from everyformer.explore.network_data import network_data
from everyformer.explore.tour import OWN_TOUR, has_tour, read_tour, tour_network
from everyformer.model.network import Network
from everyformer.page import Page as Page
from everyformer.targets.target import Target

Tour = str | os.PathLike[str] | None
"""The file of a guided tour; None for the library's own."""


def explore(shown: Network | Built, links: Links = NO_LINKS, tour: Tour = None) -> Page:
    """The page of a network; with its target and certificate, if it was just built.

    Args:
        shown: The network.
        links: Where the page sends its reader.
        tour: The file of the guided tour.

    Raises:
        InputError: If the file is not a tour.
        MemoryLimitError: If it is too large for a page.
        NumberKindError: If its weights are rationals that float64 cannot hold.
    """
    if isinstance(shown, Network):
        return network_page(shown, links=links, tour=tour)
    data = network_data(shown.network, links)  # first: it refuses what is too large
    stops = _tour(shown.network, tour, links)
    try:
        certificate = shown.certificate
    except EveryformerError:
        certificate = None
    return _page(_content(data, shown.network, shown.target, certificate), stops)


def network_page(
    network: Network,
    target: Target | None = None,
    certificate: Certificate | None = None,
    links: Links = NO_LINKS,
    tour: Tour = None,
) -> Page:
    """The page of a network, with what is known of it."""
    data = network_data(network, links)
    stops = _tour(network, tour, links)
    return _page(_content(data, network, target, certificate), stops)


def _content(
    data: dict[str, Any],
    network: Network,
    target: Target | None,
    certificate: Certificate | None,
) -> dict[str, Any]:
    known = network.construction or network.program
    return {
        "title": "network" if known is None else printable(known.target),
        "network": data,
        "function": function_data(target, certificate),
        "certificate": None if certificate is None else certificate_data(certificate),
    }


def _tour(network: Network, tour: Tour, links: Links) -> dict[str, Any]:
    """The stops, and what is known of the networks that they show besides this one."""
    if not has_tour(network):
        return {"stops": [], "networks": {}}
    read = read_tour(OWN_TOUR if tour is None else tour)
    networks = dict[str, Any]()
    for name, described in read["networks"].items():
        built = tour_network(described)
        data = network_data(built.network, links)
        networks[name] = _content(data, built.network, built.target, built.certificate)
    return {"stops": read["stops"], "networks": networks}


def _page(content: dict[str, Any], tour: dict[str, Any]) -> Page:
    return page_of("network", content["title"], {"tour": tour, **content})
