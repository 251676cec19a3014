"""Who reads which examples: the parts of an update, and of an evaluation."""

from collections.abc import Iterator

import torch

from everyformer.data.batch import FILLING, Draw
from everyformer.errors import InputError


def part_size(batch: int, part: int, parts: int) -> int:
    """Examples of one of `parts` equal parts of a batch.

    Raises:
        InputError: If the parts cannot be equal, or there is no such part.
    """
    if batch < 1 or not 0 <= part < parts or batch % parts:
        msg = (
            f"A batch of {batch} examples has no part {part} of {parts} equal ones. Give a "
            f"batch that {parts} divides."
        )
        raise InputError(msg)
    return batch // parts


def consecutive(
    first: int, batch: int, part: int, parts: int, length: int, device: torch.device
) -> Draw:
    """One part of the examples first .. first + batch - 1."""
    size = part_size(batch, part, parts)
    start = first + part * size
    return Draw(torch.arange(start, start + size, device=device), length)


def every(
    count: int, batch: int, part: int, parts: int, length: int, device: torch.device
) -> Iterator[Draw]:
    """One part of every batch of the examples 0 .. count - 1, the last one filled."""
    size = part_size(batch, part, parts)
    for first in range(0, count, batch):
        start = first + part * size
        numbers = torch.arange(start, start + size, device=device)
        yield Draw(numbers.masked_fill(numbers >= count, FILLING), length)
