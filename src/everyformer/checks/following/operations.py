"""Facts of the inputs of an operation in, facts of its result out.

One rule for each kind of operation, in `pointwise`, `products`, `sequences` and `shapes`.
An operation without a rule loses all facts, so that nothing false is ever said.
"""

from collections.abc import Sequence
from typing import Any

import torch

from everyformer.checks.following import pointwise, products, sequences, shapes
from everyformer.checks.following.facts import Facts, unknown
from everyformer.checks.following.places import placed
from everyformer.checks.following.registry import RULES, by_position, tensors_of

__all__ = ["apply", "pointwise", "products", "sequences", "shapes"]

PLACED = frozenset(
    ["gather", "index_select", "index", "roll", "flip", "repeat", "slice", "select"]
)
"""Operations that move entries to places that a look at their arguments tells."""


def apply(op: Any, args: Sequence[Any], kwargs: dict[str, Any], shape: Any) -> Any:
    """Facts of op(*args, **kwargs), the tensors among the arguments given as facts.

    `shape` is the shape of the result, or a list of shapes where there are several.
    """
    name = op.__name__.split(".")[0]
    inputs = tensors_of((args, tuple(kwargs.values())))
    if getattr(op, "namespace", "") != "aten":
        return unknown(shape, inputs)
    args, kwargs = by_position(op, args, kwargs)
    if name in RULES:
        found = RULES[name](*args, **kwargs, shape=shape)
        moves = name in PLACED and isinstance(found, Facts)
        return placed(op, args, kwargs, found) if moves else found
    tags = op.tags
    if torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags:
        return pointwise.pointwise(name, args, kwargs, shape)
    return unknown(shape, inputs)
