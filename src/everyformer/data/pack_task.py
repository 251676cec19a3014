"""What tasks share whose examples lie in a pack."""

from typing import Any, ClassVar

import numpy as np
import torch

from everyformer.data.batch import Draw
from everyformer.data.draws import consecutive
from everyformer.data.packs.pack import Pack
from everyformer.data.randomness import Split
from everyformer.data.task import Scores, told


class PackTask:
    """The examples of a pack, numbered within their split.

    Attributes:
        task: What `describe` calls it.
        settings: Names of the attributes that `describe` has besides.
        pack: Whose examples.
        seq_len: Tokens of every sequence, where all have one length.
    """

    task: str
    settings: ClassVar[tuple[str, ...]]
    pack: Pack
    seq_len: int

    def draw(
        self, step: int, batch: int, part: int, parts: int, device: torch.device
    ) -> Draw:
        """The examples of one part of update `step`: batch after batch, without an end."""
        return consecutive(step * batch, batch, part, parts, self.seq_len, device)

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """The scores in the order of the examples' numbers, however they were read."""
        order = np.argsort(numbers, kind="stable")
        return {name: values[order] for name, values in scores.items()}

    def describe(self) -> dict[str, Any]:
        """Task, pack and settings."""
        found = {"task": self.task, "pack": self.pack.name, "pack_sha256": self.pack.sha256}
        return found | told(self, *self.settings)
