"""The rules of operations, by name, and what several of them need."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from everyformer.checks.following.facts import Dims, Facts

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[R], R]:
    """Register the rule of some aten operations."""

    def register(function: R) -> R:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def by_position(
    op: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as rules take them: by position, where the operation allows both ways."""
    found, named = list(args), dict(kwargs)
    places = [one for one in op._schema.arguments if not one.kwarg_only]
    for k in range(len(found), len(places)):
        if not any(one.name in named for one in places[k:]):
            break
        default = places[k].default_value if places[k].has_default_value() else None
        found.append(named.pop(places[k].name, default))
    return found, named


def tensors_of(args: Any) -> list[Facts]:
    """All facts in nested arguments."""
    if isinstance(args, Facts):
        return [args]
    if isinstance(args, (list, tuple)):
        return [fact for entry in args for fact in tensors_of(entry)]
    return []


def aligned(fact: Facts, dim: int, rank: int) -> int | None:
    """The dimension of an operand that meets `dim` of a result of `rank`; None if none."""
    own = dim - (rank - len(fact.shape))
    return own if own >= 0 else None


def moves_together(inputs: list[Facts], rank: int) -> frozenset[int] | None:
    """Dimensions that move, if operands agree: a fixed one must have copies there."""
    moves: set[int] = set()
    for fact in inputs:
        if fact.moves is None:
            return None
        moves |= {d + rank - len(fact.shape) for d in fact.moves}
    for fact in inputs:
        for dim in moves:
            own = aligned(fact, dim, rank)
            if own is None or own in (fact.moves or ()) or fact.shape[own] == 1:
                continue
            if own not in fact.copied:
                return None
    return frozenset(moves)


def rows_together(inputs: list[Facts], rank: int) -> Dims | None:
    """Dimensions along which tokens of any operand lie."""
    found: set[int] = set()
    for fact in inputs:
        if fact.rows is None:
            return None
        found |= {d + rank - len(fact.shape) for d in fact.rows}
    return frozenset(found)
