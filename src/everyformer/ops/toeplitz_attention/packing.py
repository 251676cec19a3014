"""Sequences one after the other in one row of tokens: where that of each token lies."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def bounds(
    sequences: Int[Tensor, " s_plus_1"], n: int
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Begin and end of the sequence of each token: int32, the end not included.

    A token outside of all sequences gets (n, 0), which contains nothing.

    Args:
        sequences: Where each sequence begins, and where the last one ends.
        n: Number of tokens.

    Example:
        >>> begin, end = bounds(torch.tensor([0, 2, 3]), 4)
        >>> begin.tolist(), end.tolist()
        ([0, 0, 2, 4], [2, 2, 3, 0])
    """
    tokens = torch.arange(n, device=sequences.device, dtype=sequences.dtype)
    number = torch.searchsorted(sequences.contiguous(), tokens, right=True, out_int32=True)
    outside = (number == 0) | (number == sequences.shape[0])
    inner = sequences.clamp(0, n).to(torch.int32)
    begin = inner[(number - 1).clamp(min=0)].masked_fill(outside, n)
    end = inner[number.clamp(max=sequences.shape[0] - 1)].masked_fill(outside, 0)
    return begin, end


def own_sequence(sequences: Int[Tensor, " s_plus_1"], n: int) -> Bool[Tensor, "{n} {n}"]:
    """Whether two tokens are of one sequence.

    Args:
        sequences: Where each sequence begins, and where the last one ends.
        n: Number of tokens.
    """
    begin, end = bounds(sequences, n)
    tokens = torch.arange(n, device=sequences.device)
    return (tokens >= begin[:, None]) & (tokens < end[:, None])
