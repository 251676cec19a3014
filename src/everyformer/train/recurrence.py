"""What streams of text remember from one update to the next, at the same place always.

A CUDA graph finds its memory where it was recorded, so it is written in place. It is a part
of the state of a run, not of the model: a checkpoint holds it, the weights that a later run
starts from do not.
"""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from everyformer.layers.models.transformer_xl import Remembered, TransformerXLModel


class Recurrence:
    """The memory of some streams.

    Args:
        model: Whose.
        streams: How many.
        places: Tokens of each.
    """

    def __init__(self, model: TransformerXLModel, streams: int, places: int) -> None:
        self._shape = (streams, places)
        self._model = (model,)
        self._held: Remembered | None = None

    def read(self, streams: Int[Tensor, " b"], fresh: Bool[Tensor, " b"]) -> Remembered:
        """A copy of the memory of these streams; nothing for those that begin anew."""
        held = self._here()
        filled = held.filled[streams].masked_fill(fresh, 0)
        return Remembered(held.states[:, streams], filled)

    @torch.no_grad()
    def write(self, streams: Int[Tensor, " b"], new: Remembered) -> None:
        """Remember this of these streams."""
        held = self._here()
        held.states.index_copy_(1, streams, new.states)
        held.filled.index_copy_(0, streams, new.filled)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {} if self._held is None else self._held._asdict()

    def restore(self, stored: dict[str, Any]) -> None:
        """Go on from a checkpoint; at the same place if there was a memory before."""
        if not stored:
            self._held = None
            return
        held = self._here()
        held.states.copy_(stored["states"])
        held.filled.copy_(stored["filled"])

    def _here(self) -> Remembered:
        """Made when first used, where the model is then."""
        if self._held is None:
            self._held = self._model[0].no_memory(*self._shape)
        return self._held
