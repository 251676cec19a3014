"""Some queries of a sparse pattern, in plain torch: of a cache, a context, or asked for.

The queries of a chunk look at the keys that one of them attends to, and at no others, so
that a token of a generation costs what its set costs.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from everyformer.layers.pair_masks import masked_logits
from everyformer.layers.self_attention import Heads
from everyformer.layers.weights import attention_weights, for_all_heads, scores
from everyformer.ops.dropping import kept_pairs
from everyformer.patterns import Part

CHUNK = 256
"""Queries that are looked at together."""


def attend_some(
    heads: Heads, parts: Sequence[Part], scale: float, dropout: float, need_weights: bool
) -> tuple[Float[Tensor, "b h n_q d"], Float[Tensor, "b h n_q n_k"] | None]:
    """Outputs of queries at the places offset, offset + 1, .. of a pattern; and weights.

    Args:
        heads: Queries and keys.
        parts: One for each group of as many heads.
        scale: Of q . k.
        dropout: Probability of dropping a weight: those that the operator drops.
        need_weights: Whether to return the weights of all keys too.
    """
    n_q = heads.q.shape[2]
    chunks = [
        heads.of_queries(slice(first, min(first + CHUNK, n_q)))
        for first in range(0, n_q, CHUNK)
    ]
    found = [_of_chunk(one, parts, scale, dropout, need_weights) for one in chunks]
    mixed = torch.cat([out for out, _ in found], 2)
    weights = [each for _, each in found if each is not None]
    return mixed, torch.cat(weights, 2) if weights else None


def _of_chunk(
    heads: Heads, parts: Sequence[Part], scale: float, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    count, size = heads.q.shape[2], heads.q.shape[1] // len(parts)
    mixed: list[Tensor] = []
    weights: list[Tensor] = []
    for group, part in enumerate(parts):
        some = slice(group * size, (group + 1) * size)
        keys, hidden = heard_by(part, heads.offset, count)
        at = torch.from_numpy(keys).to(heads.q.device)
        k, v = (
            for_all_heads(x.index_select(2, at), heads.q.shape[1])[:, some]
            for x in (heads.k, heads.v)
        )
        mask = heads.mask
        if mask is not None:
            mask = (mask if mask.shape[1] == 1 else mask[:, some])[..., at]
        found = pair_weights(
            heads.q[:, some],
            k,
            torch.from_numpy(hidden).to(heads.q.device)[None, None],
            None if heads.padding is None else heads.padding[:, at],
            mask,
            scale,
            0.0,
        )
        seed = seed_of_group(heads.seed, group)
        if seed is not None:
            first = heads.first
            found = found * kept_pairs(found, seed, dropout, first_query=first, keys=at)
        mixed.append(found @ v)
        if need_weights:
            none = found.new_zeros(*found.shape[:-1], heads.k.shape[2])
            weights.append(none.index_copy(-1, at, found))
    return torch.cat(mixed, 1), torch.cat(weights, 1) if weights else None


def seed_of_group(seed: Int64[Tensor, "1"] | None, group: int) -> Int64[Tensor, "1"] | None:
    """Groups of heads count from 0 and drop different weights: each has its own seed."""
    return seed if seed is None or group == 0 else (seed + group) & (2**63 - 1)


def heard_by(
    part: Part, first: int, count: int
) -> tuple[Int64[np.ndarray, " m"], Bool[np.ndarray, "{count} m"]]:
    """The keys that queries first, .., first + count - 1 attend to, and who does not.

    Returns:
        The keys, ascending, and for each query True where it does not see a key.
    """
    rows = part.rows()
    cut = rows.indptr[first : first + count + 1]
    keys, column = np.unique(rows.indices[cut[0] : cut[-1]], return_inverse=True)
    hidden = np.ones((count, len(keys)), dtype=bool)
    hidden[np.repeat(np.arange(count), np.diff(cut)), column.reshape(-1)] = False
    return keys.astype(np.int64), hidden


def pair_weights(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h keys d"],
    hidden: Bool[Tensor, "1 h_or_1 n_q keys"],
    padding: Bool[Tensor, "b keys"] | None,
    mask: Tensor | None,
    scale: float,
    dropout: float,
) -> Float[Tensor, "b h n_q keys"]:
    """The weights that queries give keys, 0 where hidden."""
    outside: Tensor | None = hidden
    if padding is not None:
        outside = hidden | padding[:, None, None, :]
    logits, outside = masked_logits(scores(q, k, scale), outside, mask)
    return attention_weights(logits, outside, None, dtype=q.dtype, dropout=dropout)
