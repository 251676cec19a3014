"""Random integers without a state: a hash of (seed, split, index, position).

A sequence is a function of its number, so a run that resumes needs no state of a loader,
and any number of processes on any device draws the same data, bit for bit. The hash is the
finaliser of SplitMix64 (Steele, Lea, Flood 2014), applied once for each coordinate of the
counter; products of int64 wrap around in torch.
"""

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
RANGE_BITS = 31
MASK = (1 << 64) - 1


def random_integers(
    below: int,
    seed: int,
    split: Split,
    indices: Int[Tensor, " b"],
    n: int,
) -> Int[Tensor, "b n"]:
    """Integers in [0, below), one row for each index; on the device of the indices.

    `below` at most 2^20 keeps every probability within 2^-11 of 1 / below, relatively.

    Example:
        >>> random_integers(10, 0, "train", torch.tensor([0, 1]), 5)
        tensor([[7, 5, 1, 6, 5],
                [1, 0, 6, 6, 2]])
    """
    key = mixed_key(seed, SPLITS.index(split))
    rows = _mix(indices.long()[:, None] * GOLDEN + key)
    positions = torch.arange(1, n + 1, device=indices.device)
    bits = _mix(rows + positions * GOLDEN)
    return scaled(bits, below)


def mixed_key(*numbers: int) -> int:
    """One int64 from several numbers, the same in every process and on every machine."""
    key = 0
    for number in numbers:
        key = _mix_integer((key ^ number) + GOLDEN)
    return key


def mixed(key: Int[Tensor, "..."] | int, numbers: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """One step of `mixed_key` for many keys or numbers at once, on their device.

    Example:
        >>> mixed(mixed_key(5), torch.tensor(7)).item() == mixed_key(5, 7)
        True
    """
    return _mix((numbers ^ key) + GOLDEN)


def scaled(bits: Int[Tensor, "..."], below: int) -> Int[Tensor, "..."]:
    """Mixed bits as integers in [0, below), `below` at most 2^31; the top bits decide."""
    return (_shifted(bits, 64 - RANGE_BITS) * below) >> RANGE_BITS


def scaled_low(bits: Int[Tensor, "..."], below: int) -> Int[Tensor, "..."]:
    """The same by the lowest bits, which the others say nothing about."""
    return ((bits & ((1 << RANGE_BITS) - 1)) * below) >> RANGE_BITS


def stirred(bits: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Two products, half of the work of `mixed`: enough for a round of many."""
    bits = bits * FACTORS[0]
    return (bits ^ _shifted(bits, 32)) * FACTORS[1]


def _mix(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    x = (x ^ _shifted(x, 30)) * FACTORS[0]
    x = (x ^ _shifted(x, 27)) * FACTORS[1]
    return x ^ _shifted(x, 31)


def _shifted(x: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """A shift to the right that fills with zeros; torch fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix_integer(x: int) -> int:
    x &= MASK
    x = ((x ^ (x >> 30)) * FACTORS[0]) & MASK
    x = ((x ^ (x >> 27)) * FACTORS[1]) & MASK
    x ^= x >> 31
    return x - 2**64 if x >> 63 else x
