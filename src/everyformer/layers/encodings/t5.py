"""T5: a learnable scalar for each offset or bucket of offsets."""

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.layers.encodings.encoding import Encoding, table
from everyformer.layers.offsets import Exact, OffsetIndex, by_offset, check_positive
from everyformer.model.own_classes import describes_itself


@describes_itself()
class T5(Encoding):
    """b_ij = m_{i-j}: a learnable scalar per head and offset, or bucket of offsets.

    `table[h, k + max_len - 1]` belongs to offset k = i - j; with buckets, `table[h, b]` to
    bucket b, as the released T5 numbers them.

    Args:
        num_heads: Number of heads.
        max_len: Longest sequence; 2 max_len - 1 numbers per head.
        clamp: Clip the offsets of longer sequences instead of refusing them.
        buckets: `T5Buckets()` gives the buckets of T5; then max_len and clamp are not used.
        device: As in torch.
        dtype: As in torch.
    """

    name = "t5"
    no_decay = ("table",)
    made_for = (("num_heads", "table", 0),)

    def __init__(
        self,
        num_heads: int,
        max_len: int = 512,
        *,
        clamp: bool = False,
        buckets: OffsetIndex | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads)
        self.index = Exact(max_len, clamp) if buckets is None else buckets
        self.table = table(num_heads, self.index.size, device=device, dtype=dtype)

    def offset_bias(
        self,
        q: Float[Tensor, "b h n_q d"],
        n_k: int | None = None,
        offset: int | None = None,
    ) -> Float[Tensor, "h r"] | None:
        """m_k for all offsets k."""
        return by_offset(self.table, self.index, q.shape[-2], n_k, offset)
