"""Which weights are dropped: a function of seed, batch, head, query and key alone.

Philox 4x32 with 10 rounds (Salmon et al. 2011), as `tl.philox` has it: the counter is
(key, query, head, batch), the key of the generator the two halves of the seed. The upper 24
of the first 32 bits are compared with a threshold, so all paths drop the same weights.
"""

import torch
from jaxtyping import Int
from torch import Tensor

ROUNDS = 10
WORD = 0xFFFFFFFF
ROUND_A, ROUND_B = 0xD2511F53, 0xCD9E8D57
KEY_A, KEY_B = 0x9E3779B9, 0xBB67AE85
BITS = 24


def threshold(dropout: float) -> int:
    """Numbers of 24 bits below this one drop their weight."""
    return round(dropout * 2**BITS)


def growth(dropout: float) -> float:
    """1 / (1 - p), by which the other weights grow; without others it does not matter."""
    return 0.0 if dropout >= 1.0 else 1.0 / (1.0 - dropout)


def kept(
    seed: Int[Tensor, "1"],
    batches: Int[Tensor, "..."],
    heads: Int[Tensor, "..."],
    queries: Int[Tensor, "..."],
    keys: Int[Tensor, "..."],
    dropout: float,
    dtype: torch.dtype,
) -> Tensor:
    """1 / (1 - dropout) where a weight is kept, 0 where not; indices are broadcast."""
    number = seed.reshape(())
    low, high = number & WORD, (number >> 32) & WORD
    random = philox(keys, queries, heads, batches, low, high)
    return ((random >> (32 - BITS)) >= threshold(dropout)).to(dtype) * growth(dropout)


def philox(
    c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """The first 32 bits for a counter of four words and a key of two, all int64.

    Example:
        >>> zero = torch.zeros((), dtype=torch.int64)
        >>> hex(int(philox(zero, zero, zero, zero, zero, zero)))  # as published
        '0x6627e8d5'
    """
    for _ in range(ROUNDS):
        c0, c1, c2, c3 = (
            _upper(c2, ROUND_B) ^ c1 ^ low,
            (c2 * ROUND_B) & WORD,
            _upper(c0, ROUND_A) ^ c3 ^ high,
            (c0 * ROUND_A) & WORD,
        )
        low, high = (low + KEY_A) & WORD, (high + KEY_B) & WORD
    return c0


def _upper(x: Tensor, factor: int) -> Tensor:
    """The upper 32 of the 64 bits of a product, without a number beyond 2^49."""
    return (x * (factor >> 16) + (x * (factor & 0xFFFF) >> 16)) >> 16
