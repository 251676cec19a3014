"""Batches of sequences of about one length: a plan that is a function of (seed, epoch).

The length of every example is rounded up to one of a few, the lengths of the buckets.
Batches are made within buckets, so that each has one shape; the last of a bucket is filled
with examples of weight 0. An epoch shuffles the examples of each bucket, and the batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.data.batch import FILLING, Draw
from everyformer.data.draws import part_size
from everyformer.data.order import Order
from everyformer.data.pack_task import PackTask
from everyformer.data.randomness import Split, mixed_key
from everyformer.errors import InputError

BATCHES = -1
"""The order of the batches, beside those of the examples of each bucket."""


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of an epoch: a row of numbers and a length for each."""

    numbers: np.ndarray
    lengths: np.ndarray


class Buckets:
    """Examples sorted by their length.

    Args:
        sizes: Tokens of each example, at most the largest length.
        lengths: Of the buckets, ascending.
        seed: Of the orders.
    """

    def __init__(self, sizes: np.ndarray, lengths: tuple[int, ...], seed: int) -> None:
        ascending = all(a < b for a, b in pairwise(lengths))
        if not lengths or not ascending or sizes.max(initial=0) > lengths[-1]:
            msg = (
                f"Buckets of {lengths} tokens do not take examples of up to "
                f"{sizes.max(initial=0)}. Give ascending lengths, the last as long as that."
            )
            raise InputError(msg)
        of_bucket = np.searchsorted(lengths, sizes)
        self._members = {
            length: np.flatnonzero(of_bucket == k)
            for k, length in enumerate(lengths)
            if (of_bucket == k).any()
        }
        self._seed = seed
        self._kept: dict[tuple[int, int, torch.device], tuple[torch.Tensor, Batches]] = {}

    def examples_of(self, length: int, batch: int) -> int:
        """Examples of a batch of that length."""
        return batch

    def check(self, batch: int, part: int, parts: int) -> None:
        """Refuse a batch that cannot be made, or not be shared out.

        Raises:
            InputError: If so.
        """
        part_size(batch, part, parts)

    def batches(self, batch: int) -> int:
        """Batches of an epoch."""
        return sum(
            -(-len(own) // self.examples_of(n, batch)) for n, own in self._members.items()
        )

    def plan(self, epoch: int | None, batch: int) -> Batches:
        """The batches of an epoch; None is for evaluation, without any shuffling.

        Rows of batches with fewer examples than others end with filling.
        """
        self.check(batch, 0, 1)
        widest = max((self.examples_of(n, batch) for n in self._members), default=batch)
        rows: list[np.ndarray] = []
        lengths: list[int] = []
        for length, own in self._members.items():
            size = self.examples_of(length, batch)
            count = -(-len(own) // size)
            filled = np.full(count * size, FILLING, np.int64)
            filled[: len(own)] = own[self._order(epoch, length, len(own))]
            wide = np.full((count, widest), FILLING, np.int64)
            wide[:, :size] = filled.reshape(count, size)
            rows.append(wide)
            lengths += [length] * count
        order = self._order(epoch, BATCHES, len(lengths))
        numbers = np.concatenate([*rows, np.empty((0, widest), np.int64)])
        return Batches(numbers[order], np.array(lengths, np.int64)[order])

    def draw(
        self, step: int, batch: int, part: int, parts: int, device: torch.device
    ) -> Draw:
        """One part of the batch of an update; the plan of an epoch is copied once."""
        self.check(batch, part, parts)
        epoch, row = divmod(step, self.batches(batch))
        key = (epoch, batch, device)
        if key not in self._kept:
            plan = self.plan(epoch, batch)
            self._kept = {key: (torch.from_numpy(plan.numbers).to(device), plan)}
        numbers, plan = self._kept[key]
        return self._part(numbers[row], int(plan.lengths[row]), batch, part, parts)

    def evaluation(
        self, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """One part of every batch, each example once."""
        self.check(batch, part, parts)
        plan = self.plan(None, batch)
        numbers = torch.from_numpy(plan.numbers).to(device)
        for row, length in enumerate(plan.lengths.tolist()):
            yield self._part(numbers[row], length, batch, part, parts)

    def _part(
        self, row: Int[Tensor, " widest"], length: int, batch: int, part: int, parts: int
    ) -> Draw:
        size = part_size(self.examples_of(length, batch), part, parts)
        return Draw(row[part * size : (part + 1) * size], length)

    def _order(self, epoch: int | None, use: int, count: int) -> np.ndarray:
        if epoch is None or count == 0:
            return np.arange(count)
        order = Order(count, mixed_key(self._seed, use))
        return order.at(torch.full((count,), epoch), torch.arange(count)).numpy()


class Bucketed(PackTask):
    """What tasks share whose examples lie in buckets.

    Attributes:
        buckets: Of each split.
    """

    buckets: dict[Split, Buckets]

    def updates(self, batch: int, epochs: int) -> int:
        """Updates of so many epochs."""
        return epochs * self.buckets["train"].batches(batch)

    def draw(
        self, step: int, batch: int, part: int, parts: int, device: torch.device
    ) -> Draw:
        """The examples of one part of update `step`."""
        return self.buckets["train"].draw(step, batch, part, parts, device)

    def evaluation(
        self, split: Split, batch: int, part: int, parts: int, device: torch.device
    ) -> Iterator[Draw]:
        """Every example of a split, once."""
        return self.buckets[split].evaluation(batch, part, parts, device)
