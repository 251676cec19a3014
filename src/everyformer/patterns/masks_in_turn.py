"""Whether the masks of a network's blocks cycle through a pattern."""

from collections.abc import Iterable
from functools import cache

import numpy as np

from everyformer.patterns.pattern import Pattern

Layers = tuple[str, int, bool, np.ndarray | None]
"""A stage: its name, how many blocks, whether they have attention, and their masks."""


def check_cycle(pattern: Pattern | None, tokens: int, stages: Iterable[Layers]) -> None:
    """Refuse masks for another number of tokens, or that do not cycle through the pattern.

    In the class ST block b has pattern ((b - 1) mod p) + 1, whether its attention writes
    anything or not. Without a pattern a network may have any masks.

    Args:
        pattern: A^1, .., A^p, or None.
        tokens: How many tokens the blocks see.
        stages: The blocks.

    Raises:
        ValueError: Naming the stage or the block.
    """
    if pattern is not None and pattern.n != tokens:
        msg = (
            f"The pattern {pattern.name!r} is for {pattern.n} tokens, but the "
            f"blocks see {tokens}. Give a pattern for {tokens} tokens."
        )
        raise ValueError(msg)
    parts = () if pattern is None else pattern.parts

    @cache
    def mask_of(number: int) -> np.ndarray:
        return parts[number].mask()

    block = 0
    for name, blocks, attends, mask in stages:
        if mask is not None and mask.shape[-1] != tokens:
            msg = (
                f"The stage {name!r} has masks for {mask.shape[-1]} tokens, but its "
                f"blocks see {tokens}. Give masks for {tokens} tokens."
            )
            raise ValueError(msg)
        for layer in range(blocks if parts and attends else 0):
            number = (block + layer) % len(parts)
            if mask is None or (mask[layer] != mask_of(number)).any():
                msg = (
                    f"Block {block + layer + 1} (stage {name!r}) does not have the "
                    f"mask of pattern {number + 1} of {len(parts)}: the blocks of a sparse "
                    "Transformer cycle through its patterns. Give it that mask, or an "
                    "architecture without a pattern."
                )
                raise ValueError(msg)
        block += blocks
