"""The class of an image in the middle of a canvas, and of the same image moved."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.order import Order
from everyformer.data.randomness import Split, mixed, mixed_key, scaled, scaled_low
from everyformer.data.resident import Resident
from everyformer.data.task import FreshTask, Scores, evaluation_draws, told
from everyformer.experiments.urpe_images.data import Images

ORDER, MOVES = 0, 1
"""What a seed is for."""


@dataclass(frozen=True, kw_only=True)
class MovedImages(FreshTask):
    """Images on a canvas with an empty margin.

    In training they are in the middle. The test asks for every image twice: in the middle
    ("accuracy") and moved by up to the margin in both directions ("moved").

    Attributes:
        images: With their classes.
        margin: Empty pixels on each side.
        seed: Of the order of training.
    """

    images: Images = field(repr=False, compare=False)
    margin: int
    seed: int
    held: Resident = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the arrays that batches read."""
        super().__post_init__()
        pixels, labels = self.images.pixels, self.images.labels
        arrays = {f"{split} pixels": found for split, found in pixels.items()}
        arrays |= {f"{split} labels": found for split, found in labels.items()}
        object.__setattr__(self, "held", Resident(arrays))

    @property
    def side(self) -> int:
        """Pixels of the side of the canvas."""
        return self.images.pixels["train"].shape[1] + 2 * self.margin

    @property
    def channels(self) -> int:
        """Numbers of a pixel."""
        return self.images.pixels["train"].shape[-1]

    @property
    def length(self) -> int:
        """Numbers of a canvas."""
        return self.side**2 * self.channels

    def count(self, split: Split) -> int:
        """Images of a split that are scored."""
        return min(self.evaluated, len(self.images.labels[split]))

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """Every image once; of the test, a second time for the moved ones."""
        count = self.count(split) * (2 if split == "test" else 1)
        return evaluation_draws(count, batch, part, parts, self.length, device)

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """The test in two halves."""
        if split != "test":
            return scores
        count, right = self.count(split), scores["accuracy"]
        return {"accuracy": right[:count], "moved": right[count:]}

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Canvases, row by row, and classes."""
        held = self.held.on(draw.numbers.device)
        pixels, labels = held[f"{split} pixels"], held[f"{split} labels"]
        numbers = draw.numbers.long().clamp(min=0)
        shift = torch.zeros(2, len(numbers), dtype=torch.long, device=numbers.device)
        if split == "train":
            order = Order(len(labels), mixed_key(self.seed, ORDER))
            chosen = order.at(numbers // order.count, numbers % order.count)
        else:
            chosen = numbers % self.count(split)
            bits = mixed(mixed_key(MOVES), chosen)
            ways = torch.stack([scaled(bits, self.ways), scaled_low(bits, self.ways)])
            moved = numbers >= self.count(split)
            shift = torch.where(moved, ways - self.margin, shift)
        canvas = self._canvas(pixels[chosen], shift)
        weights = (draw.numbers != FILLING).float()
        return Batch(canvas.flatten(1), labels[chosen].long(), weights)

    @property
    def ways(self) -> int:
        """Places of an image in one direction."""
        return 2 * self.margin + 1

    def _canvas(self, pixels: Tensor, shift: Tensor) -> Tensor:
        """Zeros around images (b, side, side, channels), moved by (rows, columns)."""
        inner, places = pixels.shape[1], torch.arange(self.side, device=pixels.device)
        at = places - self.margin - shift[..., None]  # [2, b, side]: the pixel seen there
        inside = (at >= 0) & (at < inner)
        rows, columns = at.clamp(0, inner - 1)
        image = torch.arange(len(pixels), device=pixels.device)[:, None, None]
        found = pixels[image, rows[:, :, None], columns[:, None, :]]
        seen = inside[0][:, :, None] & inside[1][:, None, :]
        return torch.where(seen[..., None], found, 0)

    def describe(self) -> dict[str, Any]:
        """Images and sizes."""
        sizes = told(self, "margin", "seed", "evaluated")
        return {"name": "images", "images": self.images.name, **sizes}
