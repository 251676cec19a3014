"""Whether the masks of a network are those of its pattern."""

from collections.abc import Iterable

from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.stacks import Stage
from everyformer.patterns.masks_in_turn import check_cycle


def check_masks(spec: ArchitectureSpec, stages: Iterable[Stage]) -> None:
    """Refuse masks for another number of tokens, or that do not cycle through the pattern.

    Raises:
        ValueError: Naming the stage or the block.
    """
    layers = (
        (
            stage.name,
            stage.blocks,
            stage.attention is not None,
            None if stage.attention is None else stage.attention.mask,
        )
        for stage in stages
    )
    check_cycle(spec.pattern, spec.seq_len + spec.num_prefix, layers)
