"""Which weights are dropped: a function of seed, batch, head, query and key alone.

Philox 4x32 with 10 rounds (Salmon et al. 2011), as `tl.philox` has it: the counter is
(key, query, head, batch), the key of the generator the two halves of the seed. It gives
four words at a time. Key and query go into the counter without their bit 3, and these two
bits say which word is meant: in the accumulators of tensor cores one thread holds all four
entries, and computes them once. The upper 24 bits of the word are compared with a
threshold, so all paths drop the same weights.
"""

import torch
from jaxtyping import Float, Int
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


def drawn(
    seed: Int[Tensor, "..."] | None, dropout: float, device: torch.device
) -> Int[Tensor, "..."] | None:
    """The seed that is given, or a random one; None where nothing is dropped."""
    if dropout == 0.0:
        return None
    return torch.randint(2**63 - 1, (1,), device=device) if seed is None else seed


def kept(
    seed: Int[Tensor, "..."],
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
    words = philox(_squeezed(keys), _squeezed(queries), heads, batches, low, high)
    odd, upper = (keys >> 3) & 1 > 0, (queries >> 3) & 1 > 0
    word = torch.where(
        upper, torch.where(odd, words[3], words[2]), torch.where(odd, words[1], words[0])
    )
    return ((word >> (32 - BITS)) >= threshold(dropout)).to(dtype) * growth(dropout)


def kept_pairs(
    weights: Float[Tensor, "b h n_q n_k"],
    seed: Int[Tensor, "1"],
    dropout: float,
    *,
    first_sequence: int = 0,
    first_query: int = 0,
    keys: Int[Tensor, " n_k"] | None = None,
) -> Float[Tensor, "b h n_q n_k"]:
    """What weights are multiplied by: 0 or 1 / (1 - dropout).

    Args:
        weights: Of sequences and queries that follow each other; for their shape, dtype
            and device.
        seed: As given to the operator.
        dropout: The share of weights that are dropped.
        first_sequence: Number of the first of these sequences.
        first_query: Number of the first of these queries.
        keys: Their numbers; by default all keys from 0 on.
    """
    b, h, i, j = (torch.arange(size, device=weights.device) for size in weights.shape)
    j = j if keys is None else keys
    b, i = b + first_sequence, i + first_query
    places = b[:, None, None, None], h[:, None, None], i[:, None], j
    return kept(seed, *places, dropout, weights.dtype)


def _squeezed(x: Tensor) -> Tensor:
    """A number without its bit 3."""
    return (x >> 4 << 3) | (x & 7)


def philox(
    c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 bits for a counter of four words and a key of two, all int64.

    Example:
        >>> zero = torch.zeros((), dtype=torch.int64)
        >>> [hex(int(word)) for word in philox(*[zero] * 6)]  # as published
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    for _ in range(ROUNDS):
        c0, c1, c2, c3 = (
            _upper(c2, ROUND_B) ^ c1 ^ low,
            (c2 * ROUND_B) & WORD,
            _upper(c0, ROUND_A) ^ c3 ^ high,
            (c0 * ROUND_A) & WORD,
        )
        low, high = (low + KEY_A) & WORD, (high + KEY_B) & WORD
    return c0, c1, c2, c3


def _upper(x: Tensor, factor: int) -> Tensor:
    """The upper 32 of the 64 bits of a product, without a number beyond 2^49."""
    return (x * (factor >> 16) + (x * (factor & 0xFFFF) >> 16)) >> 16
