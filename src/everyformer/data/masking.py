"""Masked language modelling: which tokens are hidden, and what stands in their place.

Of every sequence exactly m tokens are chosen, those with the largest hash of (key,
position), so that shapes are known before the data are. Of the chosen ones 80 % become
[MASK], 10 % another word at random and 10 % stay (Devlin et al. 2019). Special tokens and
padding are never chosen; a random word is never a special token.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from everyformer.data.randomness import mixed, scaled, scaled_low

LONGEST = 1 << 12
TENTHS_MASKED = 8
"""One tenth more is replaced by random words."""


class Masked(NamedTuple):
    """Sequences with hidden tokens, where these are, and what they were."""

    tokens: Int[Tensor, "b n"]
    places: Int[Tensor, "b m"]
    labels: Int[Tensor, "b m"]


def masked(
    tokens: Int[Tensor, "b n"],
    allowed: Bool[Tensor, "b n"],
    keys: Int[Tensor, " b"],
    count: int,
    *,
    mask: int,
    words: Int[Tensor, " w"],
) -> Masked:
    """Hide `count` of the allowed tokens of each sequence.

    Args:
        tokens: The sequences.
        allowed: Which tokens may be hidden; at least `count` of each sequence.
        keys: Mixed bits, one for each sequence; the same key hides the same.
        count: m.
        mask: Id of [MASK].
        words: Ids of the words that may stand in for another.
    """
    places = chosen(allowed, keys, count)
    labels = tokens.gather(1, places)
    bits = mixed(keys[:, None], places + LONGEST)
    kinds = scaled(bits, 10)
    random = words[scaled_low(bits, len(words))].long()
    shown = labels.masked_fill(kinds < TENTHS_MASKED, mask)
    shown = torch.where(kinds == TENTHS_MASKED, random, shown)
    return Masked(tokens.scatter(1, places, shown), places, labels)


def chosen(
    allowed: Bool[Tensor, "b n"], keys: Int[Tensor, " b"], count: int
) -> Int[Tensor, "b m"]:
    """The places of the `count` largest hashes, in ascending order.

    The place itself is the end of the number that is compared, so that none are equal.
    """
    n = allowed.shape[1]
    place = torch.arange(n, device=allowed.device)
    bits = scaled(mixed(keys[:, None], place), 1 << 31)
    ranked = (bits * LONGEST + place).masked_fill(~allowed, -1)
    return ranked.topk(count, dim=1, sorted=False).indices.sort(dim=1).values
