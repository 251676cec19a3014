"""Whether the masks of a network are those of its pattern."""

from collections.abc import Iterable

from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.stacks import Stage


def check_masks(spec: ArchitectureSpec, stages: Iterable[Stage]) -> None:
    """Refuse masks for another number of tokens, or that do not cycle through the pattern.

    In the class ST block b has pattern ((b - 1) mod p) + 1, whether its attention writes
    anything or not. Without a pattern a network may have any masks.

    Raises:
        ValueError: Naming the stage or the block.
    """
    tokens = spec.seq_len + spec.num_prefix
    if spec.pattern is not None and spec.pattern.n != tokens:
        msg = (
            f"The pattern {spec.pattern.name!r} is for {spec.pattern.n} tokens, but the "
            f"blocks see {tokens}. Give a pattern for {tokens} tokens."
        )
        raise ValueError(msg)
    parts = () if spec.pattern is None else spec.pattern.parts
    masks = [part.mask() for part in parts]
    block = 0
    for stage in stages:
        mask = None if stage.attention is None else stage.attention.mask
        if mask is not None and mask.shape[-1] != tokens:
            msg = (
                f"The stage {stage.name!r} has masks for {mask.shape[-1]} tokens, but its "
                f"blocks see {tokens}. Give masks for {tokens} tokens."
            )
            raise ValueError(msg)
        for layer in range(stage.blocks if masks and stage.attention is not None else 0):
            number = (block + layer) % len(masks)
            if mask is None or (mask[layer] != masks[number]).any():
                msg = (
                    f"Block {block + layer + 1} (stage {stage.name!r}) does not have the "
                    f"mask of pattern {number + 1} of {len(masks)}: the blocks of a sparse "
                    "Transformer cycle through its patterns. Give it that mask, or an "
                    "architecture without a pattern."
                )
                raise ValueError(msg)
        block += stage.blocks
