"""What stays when the tokens are reversed: statements about one permutation of them.

Let R turn the order of the tokens round. The rules of `moves` say of every permutation that
an operation commutes with it, so they hold for R alone; but where it is R alone, a tensor
that does not depend on the tokens may take part too: c_{|i-j|} is its own mirror image
along queries and keys, for all weights. This is seen from the *kinds* of its entries, which
are equal where the entries are, for all weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from everyformer.checks.following.facts import Dims, Facts
from everyformer.checks.following.registry import aligned, tensors_of

MOVING = frozenset(
    ["index_select", "index", "gather", "expand", "view", "reshape", "_unsafe_view",
     "unsqueeze", "squeeze", "permute", "transpose", "t", "slice", "select", "clone",
     "alias", "contiguous", "detach", "flip", "roll", "repeat", "cat", "embedding"]
)  # fmt: skip
"""Operations whose result has entries of their first argument, at places that are known."""

PRODUCTS = frozenset(["matmul", "mm", "bmm"])
MOST_ENTRIES = 2**20
BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16}


class Kinds:
    """Numbers for the entries of tensors, a new one for each that may differ."""

    def __init__(self) -> None:
        """None is given away yet."""
        self.next = 0

    def fresh(self, classes: torch.Tensor) -> torch.Tensor:
        """Numbers 0, 1, .. as kinds that no other tensor has."""
        found = classes.long() + self.next
        self.next += int(classes.max()) + 1 if classes.numel() else 0
        return found

    def of_weight(self, shape: Sequence[int]) -> torch.Tensor | None:
        """Every entry may differ from every other."""
        count = torch.Size(shape).numel()
        return (
            self.fresh(torch.arange(count).reshape(tuple(shape))) if _fits(shape) else None
        )

    def of_constant(self, value: torch.Tensor) -> torch.Tensor | None:
        """Equal bits are equal; 0 and -0 are not, since 1 / 0 and 1 / -0 differ."""
        bits = value.view(BITS[value.dtype]) if value.dtype in BITS else value
        if bits.is_floating_point() or bits.is_complex() or not _fits(value.shape):
            return None
        return self.fresh(torch.unique(bits, return_inverse=True)[1].reshape(value.shape))

    def of_result(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], shape: Sequence[int]
    ) -> torch.Tensor | None:
        """Of an operation on tensors that do not depend on the tokens."""
        inputs = tensors_of((args, tuple(kwargs.values())))
        name = op.__name__.split(".")[0]
        if getattr(op, "namespace", "") != "aten" or not _fits(shape):
            return None
        if name in MOVING:
            return _moved(op, args, kwargs)
        tags = op.tags
        if torch.Tag.pointwise not in tags or torch.Tag.nondeterministic_seeded in tags:
            return None
        known = [fact.kinds for fact in inputs if fact.kinds is not None]
        if not known or len(known) < len(inputs):
            return None
        rows = torch.stack([one.broadcast_to(tuple(shape)).flatten() for one in known])
        classes = torch.unique(rows, dim=1, return_inverse=True)[1]
        return self.fresh(classes.reshape(tuple(shape)))


def _fits(shape: Sequence[int]) -> bool:
    return 0 < torch.Size(shape).numel() <= MOST_ENTRIES


def _moved(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The kinds of the first argument, at their new places; indices must be known."""
    first, *rest = args
    if any(isinstance(one, torch.dtype) for one in rest):
        return None  # the bits are read as other numbers
    many = first if isinstance(first, list) else [first]
    if any(not isinstance(one, Facts) or one.kinds is None for one in many):
        return None
    others = tensors_of((rest, tuple(kwargs.values())))
    if any(fact.value is None for fact in others):
        return None
    held = [one.kinds for one in many]
    moved = op(held if isinstance(first, list) else held[0], *_values(rest), **kwargs)
    return moved if isinstance(moved, torch.Tensor) else None


def _values(args: Any) -> Any:
    if isinstance(args, Facts):
        return args.value
    return [_values(entry) for entry in args] if isinstance(args, list) else args


def is_mirror_image(kinds: torch.Tensor | None, dims: Dims) -> bool:
    """Whether a tensor stays itself when it is turned round along some dimensions."""
    return kinds is not None and torch.equal(kinds, kinds.flip(sorted(dims)))


def with_mirror_images(op: Any, args: Sequence[Any], shape: Any) -> list[Any]:
    """Arguments of an operation, of which those that can move with the others do.

    An operand that does not depend on the tokens counts as moving along the dimensions that
    the others move along, if it is its own mirror image there.
    """
    found, name = list(args), op.__name__.split(".")[0]
    if name in PRODUCTS and len(found) == 2:
        return _factors(*found)
    if name == "scaled_dot_product_attention":
        mask = found[3] if len(found) > 3 else None
        if isinstance(mask, Facts) and len(mask.shape) >= 2:
            rank = len(mask.shape)
            found[3] = _moving(mask, frozenset({rank - 2, rank - 1}))
        return found
    if torch.Tag.pointwise not in getattr(op, "tags", ()):
        return found
    places = [k for k, one in enumerate(found) if isinstance(one, Facts)]
    rank, along = len(shape), set[int]()
    for k in places:
        along |= {d + rank - len(found[k].shape) for d in found[k].moves or ()}
    for k in places:
        own = {aligned(found[k], d, rank) for d in along} - {None}
        found[k] = _moving(found[k], frozenset(d for d in own if d is not None))
    return found


def _factors(a: Any, b: Any) -> list[Any]:
    """A fixed factor: along its rows (columns) and keys, or along its keys alone."""
    if isinstance(a, Facts) and isinstance(b, Facts) and min(map(_rank, (a, b))) >= 2:
        row, key = _rank(a) - 2, _rank(a) - 1
        key_b, column = _rank(b) - 2, _rank(b) - 1
        if key_b in (b.moves or ()):
            a = _moving(_moving(a, frozenset({row, key})), frozenset({key}))
        elif key in (a.moves or ()):
            b = _moving(_moving(b, frozenset({key_b, column})), frozenset({key_b}))
    return [a, b]


def _rank(fact: Facts) -> int:
    return len(fact.shape)


def _moving(fact: Facts, dims: Dims) -> Facts:
    """Facts that say that a tensor moves along some dimensions, if they do not yet."""
    dims = frozenset(d for d in dims if fact.shape[d] > 1)
    if fact.depends or fact.moves or not dims or not is_mirror_image(fact.kinds, dims):
        return fact
    return replace(fact, moves=dims)
