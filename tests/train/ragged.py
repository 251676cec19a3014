"""A task whose parts weigh unequally, and a small masked language model for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.randomness import Split, random_integers
from everyformer.data.task import Scores, evaluation_draws
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.train.objectives.masked import MaskedLanguage

CONFIG = EncoderConfig(
    12, 8, dim=16, layers=2, heads=2, ffn=32, segments=2, pooler=True, norm="pre"
)


@dataclass(frozen=True)
class Ragged:
    """Windows of 6 or 8 tokens with 0 to 4 masked ones; some are filling.

    Attributes:
        longer: The updates from the first on have windows of 8 tokens, up to the second.
    """

    longer: tuple[int, int] = (4, 10**9)

    def draw(
        self, step: int, batch: int, part: int, parts: int, device: torch.device
    ) -> Draw:
        size = batch // parts
        numbers = torch.arange(part * size, (part + 1) * size, device=device)
        numbers = (numbers + step * batch).where(numbers % 5 != 2, FILLING)
        first, stop = self.longer
        return Draw(numbers, 8 if first <= step < stop else 6)

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        return evaluation_draws(37, batch, part, parts, 8, device)

    def batch(self, split: Split, draw: Draw) -> Batch:
        n, numbers = draw.length, draw.numbers
        rows = random_integers(12, 5, split, numbers, n + 14)
        real = (numbers != FILLING)[:, None]
        return Batch(
            tokens=rows[:, :n],
            labels=rows[:, n : n + 4],
            # Most windows of one half of the numbers have few labels.
            weights=((rows[:, n + 4 : n + 8] < 2 + numbers[:, None] % 10) & real).float(),
            segments=rows[:, :n] % 2,
            places=rows[:, n + 8 : n + 12] % n,
            next_labels=rows[:, n + 12] % 2,
        )

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        assert (numbers == np.arange(37)).all()
        return {**scores, "windows": numbers.astype(float)}

    def describe(self) -> dict[str, Any]:
        return {"name": "ragged", "longer": list(self.longer)}


def masked_language() -> MaskedLanguage:
    return MaskedLanguage(Encoder(CONFIG))
