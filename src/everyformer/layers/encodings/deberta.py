"""DeBERTa: content to position and position to content."""

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.layers.encodings.encoding import Encoding, table
from everyformer.layers.graphs.graph import Graph
from everyformer.layers.kept_indexes import kept_index
from everyformer.layers.offsets import (
    Exact,
    LogBuckets,
    OffsetIndex,
    by_offset,
    check_positive,
    spread_offsets,
)
from everyformer.model.own_classes import describes_itself


@describes_itself()
class Deberta(Encoding):
    """logits_ij = scale (q_i . k_j + q_i . r_{i-j} + s_{i-j} . k_j), scale = 1/sqrt(3 d).

    r and s are vectors per head: `key_table[h, e]` and `query_table[h, e]`, where entry e
    of offset k = i - j is k + max_len - 1, or given by `buckets`.

    Differs from the released models: those make r and s from one table of embeddings by
    linear maps, P W_K' and P W_Q'. Copy the products; rows 1 to 2 span - 1 of their table
    are entries 0 to 2 span - 2 here.

    Args:
        num_heads: Number of heads.
        head_dim: Size of a head.
        max_len: Longest sequence; 2 max_len - 1 vectors of each kind and head.
        clamp: Clip the offsets of longer sequences instead of refusing them.
        buckets: `LogBuckets()` for the buckets of DeBERTa-v2; then max_len and clamp are
            not used.
        device: As in torch.
        dtype: As in torch.
    """

    name = "deberta"
    query_bias = True
    pairwise = True
    terms = 3
    no_decay = ("key_table", "query_table")
    made_for = (("num_heads", "key_table", 0), ("head_dim", "key_table", 2))

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        max_len: int = 512,
        *,
        clamp: bool = False,
        buckets: OffsetIndex | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, head_dim=head_dim)
        self.index = Exact(max_len, clamp) if buckets is None else buckets
        shape = (num_heads, self.index.size, head_dim)
        self.key_table = table(*shape, device=device, dtype=dtype)
        self.query_table = table(*shape, device=device, dtype=dtype)

    def pair_bias(
        self,
        q: Float[Tensor, "b h n_q d"],
        k: Float[Tensor, "b h n_k d"],
        scale: float,
        graph: Graph | None,
        offset: int | None = None,
    ) -> Float[Tensor, "b h n_q n_k"] | None:
        """scale (q_i . r_{i-j} + s_{i-j} . k_j)."""
        n_q, n_k = q.shape[-2], k.shape[-2]
        r, s = (
            by_offset(table.mT, self.index, n_q, n_k, offset).to(
                q.dtype
            )  # [h, d, n_q+n_k-1]
            for table in (self.key_table, self.query_table)
        )
        to_position = spread_offsets((q * scale) @ r, n_k)
        # Seen from the key, the offset of the query is the negative one: flip, transpose.
        to_content = spread_offsets((k * scale) @ s.flip(-1), n_q).mT
        return to_position + to_content

    def bucket_terms(
        self, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """q_i . r and k_j . s for all entries of the tables, and the entry of each offset.

        Of tables with more entries than there are offsets, those of the offsets.
        """
        n, index = q.shape[-2], self.index
        if not isinstance(index, (Exact, LogBuckets)):
            return None
        few = 2 * n - 1 <= index.size

        def make() -> Tensor:
            return torch.arange(2 * n - 1) if few else index(torch.arange(1 - n, n))

        tables = self.key_table.mT, self.query_table.mT  # [h, d, entries]
        if few:
            r, s = (by_offset(x, index, n) for x in tables)
        else:
            index.check(n)
            r, s = tables
        entries = kept_index((None if few else index, n), q.device, make)
        return q @ r.to(q.dtype), k @ s.to(k.dtype), entries
