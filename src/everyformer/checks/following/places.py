"""Where the entries of a result come from, for operations that only move them.

Such an operation is run on the numbers of the places: entry e of the result is entry
p(e) of its first argument. What holds for the slices of the argument then holds for
those of the result that are made of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from everyformer.checks.following.facts import Dims, Facts, Shape
from everyformer.checks.following.hearing import Heard, Hearing, merged, reached
from everyformer.checks.following.registry import tensors_of

MOST_PLACES = 2**18
"""Entries of a tensor whose places are looked up one by one."""


def placed(op: Any, args: Sequence[Any], kwargs: dict[str, Any], found: Facts) -> Facts:
    """Facts of the result, with what the places of its entries tell beside them.

    Args:
        op: An operation that moves entries of its first argument.
        args: Its arguments, tensors as facts; the others must be known.
        kwargs: Those with names.
        found: What is known of the result without the places.
    """
    x, *rest = args
    others = tensors_of((rest, tuple(kwargs.values())))
    entries = max(torch.Size(x.shape).numel(), torch.Size(found.shape).numel())
    if any(fact.value is None for fact in others) or 0 in (*x.shape, *found.shape):
        return found
    if entries > MOST_PLACES or any(isinstance(one, torch.dtype) for one in rest):
        return found

    def moved(held: torch.Tensor) -> torch.Tensor:
        whole = held.broadcast_to(x.shape).contiguous()
        return op(whole, *_values(rest), **_values(kwargs))

    long = [k for k, size in enumerate(x.shape) if size > 1]
    places = {k: moved(_numbers(x.shape, k)) for k in long}
    masks = {
        name: None if mask is None else moved(mask)
        for name, mask in (
            ("blocked", x.blocked),
            ("hidden", x.hidden),
            ("silent", x.silent),
        )
    }
    return replace(
        found,
        uniform=found.uniform | _constant(places, x.uniform, found.shape),
        copied=found.copied | _constant(places, x.copied, found.shape),
        heard=_heard(places, x, found.shape),
        least=x.least,
        **masks,
    )


def _numbers(shape: Shape, dim: int) -> torch.Tensor:
    """The number of the slice along `dim` that each entry is in."""
    sizes = [1] * len(shape)
    sizes[dim] = -1
    return torch.arange(shape[dim]).reshape(sizes)


def _constant(places: dict[int, torch.Tensor], same: Dims, shape: Shape) -> Dims:
    """Dimensions along which entries come from slices that differ in `same` alone."""
    telling = [place for k, place in places.items() if k not in same]
    return frozenset(
        d
        for d in range(len(shape))
        if all(bool((place == place.narrow(d, 0, 1)).all()) for place in telling)
    )


def _heard(places: dict[int, torch.Tensor], x: Facts, shape: Shape) -> Heard | None:
    """What slices of the result hear, along the dimension that tells them apart best."""
    if x.heard is None or not shape:
        return x.heard if x.heard == () else None
    found: list[Hearing] = []
    for one in x.heard:
        if one.dim not in places:
            everyone = one.by.any(0).expand(shape[0], -1)
            found.append(Hearing(0, everyone))
            continue
        ways = [
            Hearing(d, reached(_met(places[one.dim], d, x.shape[one.dim]), one.by))
            for d in range(len(shape))
        ]
        found.append(min(ways, key=lambda way: float(way.by.double().mean())))
    return merged(found)


def _met(place: torch.Tensor, dim: int, slices: int) -> torch.Tensor:
    """Which slices of the argument each slice of the result along `dim` is made of."""
    rows = place.movedim(dim, 0).reshape(place.shape[dim], -1)
    found = torch.zeros(place.shape[dim], slices, dtype=torch.bool)
    return found.scatter_(1, rows, value=True)


def _values(args: Any) -> Any:
    if isinstance(args, Facts):
        return args.value
    if isinstance(args, dict):
        return {key: _values(entry) for key, entry in args.items()}
    return [_values(entry) for entry in args] if isinstance(args, list) else args
