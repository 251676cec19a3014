"""The guided tour of a page: stops as data, and the networks that they show.

A tour is a JSON file with two entries, `networks` and `stops`; `page/tour.json` is the one
that every page with ids has. A stop shows the network of the page, or one that `networks`
describes, which is built when the page is made.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from everyformer.construct.method import Method
from everyformer.construct.pipeline import Built, construct
from everyformer.construct.registry import DEFAULT, METHODS, method_of
from everyformer.errors import InputError, did_you_mean
from everyformer.explore.inline import PAGE
from everyformer.files.strict_json import read_json
from everyformer.model.network import Network
from everyformer.patterns.by_name import by_name
from everyformer.targets.gallery import GALLERY

STOP: dict[str, type] = {
    "title": str,
    "text": list,
    "formulas": list,
    "network": str,
    "pane": str,
    "needs": str,
    "unless": str,
    "stage": str,
    "at": str,
    "set": dict,
}
"""What a stop may say; title and text it must."""

NETWORK: dict[str, type] = {
    "target": str,
    "n": int,
    "d": int,
    "grid": int,
    "method": str,
    "pattern": str,
}
"""How a network of a tour is described: a target of the library, and a grid."""

OWN_TOUR = PAGE / "tour.json"

LAST_STAGES = ("global shift", "lift", "max shifts")
"""Stages after which ids name the sequence; a network without them has no tour."""


def has_tour(network: Network) -> bool:
    """Whether the network makes ids by shifts, as the tour tells."""
    known = network.construction
    if known is None or known.ids is None:
        return False
    return any(stage.kind in LAST_STAGES for stage in network.stages)


def read_tour(path: str | os.PathLike[str] = OWN_TOUR) -> dict[str, Any]:
    """The tour of a file.

    Raises:
        InputError: If it is not a tour: what is wrong, and in which stop.
    """
    place = Path(path)
    try:
        tour = read_json(place.read_bytes())
    except (OSError, ValueError) as error:
        msg = f"The tour {place} cannot be read: {error}."
        raise InputError(msg) from error
    if not isinstance(tour, dict) or set(cast("dict[str, Any]", tour)) - {"networks"} != {
        "stops"
    }:
        msg = (
            f"{place} is not a tour: write {{'networks': {{...}}, 'stops': [...]}}, as in "
            f"{OWN_TOUR}."
        )
        raise InputError(msg)
    held = cast("dict[str, Any]", tour)
    networks, stops = held.get("networks", {}), held["stops"]
    if not isinstance(networks, dict) or not isinstance(stops, list) or not stops:
        msg = f"{place}: 'networks' must be an object and 'stops' a list that is not empty."
        raise InputError(msg)
    described = cast("dict[str, Any]", networks)
    for name, one in described.items():
        _check(f"{place}: network {name!r}", one, NETWORK, ("target", "n", "grid"))
    for number, stop in enumerate(cast("list[Any]", stops), 1):
        where = f"{place}: stop {number}"
        _check(where, stop, STOP, ("title", "text"))
        for key in ("text", "formulas"):
            if not all(isinstance(one, str) for one in stop.get(key, ())):
                msg = f"{where}: {key!r} must be a list of paragraphs, each a text."
                raise InputError(msg)
        if stop.get("network", "") not in ("", *described):
            msg = (
                f"{where} shows the network {stop['network']!r}, which 'networks' does not "
                f"describe.{did_you_mean(stop['network'], described)}"
            )
            raise InputError(msg)
    return {"networks": described, "stops": stops}


def _check(
    where: str, given: Any, known: Mapping[str, type], needed: tuple[str, ...]
) -> None:
    if not isinstance(given, dict):
        msg = f"{where} must be an object with {', '.join(known)}."
        raise InputError(msg)
    entries = cast("dict[str, Any]", given)
    for key in needed:
        if key not in entries:
            msg = f"{where} has no {key!r}. It needs {' and '.join(needed)}."
            raise InputError(msg)
    for key, value in entries.items():
        if key not in known:
            msg = (
                f"{where}: {key!r} is not known.{did_you_mean(key, known)} "
                f"Choose from {', '.join(known)}."
            )
            raise InputError(msg)
        if not isinstance(value, known[key]) or isinstance(value, bool):
            msg = f"{where}: {key!r} is {value!r:.60}, not {known[key].__name__}."
            raise InputError(msg)


def tour_network(described: Mapping[str, Any]) -> Built:
    """The network that a tour describes, with its certificate; each is built once.

    Raises:
        InputError: If there is no such target.
        EveryformerError: If it cannot be built.
    """
    return _built(tuple(sorted(described.items())))


@lru_cache(maxsize=8)
def _built(described: tuple[tuple[str, Any], ...]) -> Built:
    given = dict(described)
    if given["target"] not in GALLERY:
        near = did_you_mean(given["target"], GALLERY)
        msg = (
            f"A tour names the target {given['target']!r}.{near} Choose one of "
            f"{', '.join(GALLERY)}."
        )
        raise InputError(msg)
    target = GALLERY[given["target"]](given["n"], given.get("d", 1))
    return construct(target, grid=given["grid"], method=_method(given))


def _method(given: Mapping[str, Any]) -> Method:
    name = given.get("method", DEFAULT)
    if "pattern" not in given:
        return method_of(name)
    kind = METHODS.get(name)
    if kind is None or "pattern" not in {one.name for one in fields(kind)}:  # type: ignore[arg-type]
        msg = f"A tour gives a pattern to the method {name!r}, which takes none."
        raise InputError(msg)
    settings: dict[str, Any] = {"pattern": by_name(given["pattern"], n=given["n"])}
    return kind(**settings)
