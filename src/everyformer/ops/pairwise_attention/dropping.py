"""Which weights are dropped: those that `toeplitz_attention` drops with the same seed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from everyformer.ops.dropping import kept
from everyformer.ops.pairwise_attention.operands import Operands


def kept_pairs(x: Operands, places: Sequence[range], dtype: torch.dtype) -> Tensor | None:
    """What weights are multiplied by: 0, or 1 / (1 - dropout); None if all are kept.

    Args:
        x: Of it the seed and the dropout.
        places: Numbers of sequences, heads, queries and keys.
        dtype: Of the result.
    """
    if x.seed is None or x.dropout == 0.0:
        return None
    batches, heads, queries, keys = (
        torch.arange(some.start, some.stop, device=x.q.device).view(
            [-1 if k == axis else 1 for k in range(4)]
        )
        for axis, some in enumerate(places)
    )
    return kept(x.seed, batches, heads, queries, keys, x.dropout, dtype)
