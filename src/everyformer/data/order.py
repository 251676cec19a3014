"""The order of an epoch: a permutation that is computed, never stored.

Numbers 0 .. N - 1 are written as (x, y) in a table of a rows and b columns, a b >= N. A
Feistel network of four rounds adds a keyed hash of y to x modulo a, then one of x to y
modulo b, and so on. Each round can be undone, so the network P permutes the a b cells.

Cells N .. a b - 1 are numbers of nothing: where P leads to one of them, it is applied again
(cycle walking). As P is a permutation, a walk from a number below N meets no cell twice
before it is below N again, so it takes at most E + 1 applications, E = a b - N. Of
the a from sqrt(N) / 8 to sqrt(N) the one with the smallest E is taken: 0 for most N, at
most 8 where tried. So the walk has a fixed length, and nothing waits for the device.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.data.randomness import mixed, mixed_key, scaled, stirred
from everyformer.errors import InputError

ROUNDS = ((mixed_key(0), mixed_key(1)), (mixed_key(2), mixed_key(3)))
"""What is added to the key in each."""

LARGEST = 1 << 31


@dataclass(frozen=True)
class Order:
    """Permutations of 0 .. count - 1, one for each epoch.

    Args:
        count: N.
        key: Of all of them.
    """

    count: int
    key: int

    def __post_init__(self) -> None:
        """Check the count."""
        if not 1 <= self.count < LARGEST:
            msg = f"There is no order of {self.count} examples; give 1 .. {LARGEST - 1}."
            raise InputError(msg)

    @cached_property
    def table(self) -> tuple[int, int]:
        """Rows a and columns b of the table with the fewest cells beyond N.

        Example:
            >>> Order(1000, 0).table, Order(57_176, 0).table
            ((25, 40), (56, 1021))
        """
        root = math.isqrt(self.count)
        rows = range(max(min(root, 2), root // 8), root + 2)
        a = min(rows, key=lambda a: (-self.count % a, -a))
        return a, -(-self.count // a)

    def at(self, epochs: Int[Tensor, " b"], places: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Which number stands at each of these places (0 .. N - 1) of its epoch."""
        a, b = self.table
        keys = mixed(self.key, epochs)
        found = self._permuted(keys, places)
        for _ in range(a * b - self.count):
            found = torch.where(found < self.count, found, self._permuted(keys, found))
        return found

    def _permuted(self, keys: Int[Tensor, " b"], cells: Int[Tensor, " b"]) -> Tensor:
        a, b = self.table
        x, y = cells // b, cells % b
        for first, second in ROUNDS:
            x = (x + scaled(stirred((keys + first) ^ y), a)) % a
            y = (y + scaled(stirred((keys + second) ^ x), b)) % b
        return x * b + y
