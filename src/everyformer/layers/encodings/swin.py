"""Swin: a learnable scalar for each two-dimensional offset in a window."""

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.layers.encodings.encoding import Encoding, table
from everyformer.layers.graphs.graph import Graph
from everyformer.layers.offsets import check_positive
from everyformer.layers.window import window_entries
from everyformer.model.own_classes import describes_itself


@describes_itself()
class Swin(Encoding):
    """b_ij = m_{dx, dy} for each head, (dx, dy) the place of i minus that of j.

    Tokens are the M x M places of a window, row by row. `table[h, (dx + M - 1) (2M - 1) +
    dy + M - 1]` belongs to (dx, dy).
    """

    name = "swin"
    pairwise = True
    whole = True
    no_decay = ("table",)
    made_for = (("num_heads", "table", 0),)

    def __init__(
        self,
        num_heads: int,
        window: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A window of `window` rows and columns."""
        super().__init__()
        check_positive(num_heads=num_heads, window=window)
        self.window = window
        self.table = table(num_heads, (2 * window - 1) ** 2, device=device, dtype=dtype)

    def pair_bias(
        self,
        q: Float[Tensor, "b h n d"],
        k: Float[Tensor, "b h n d"],
        scale: float,
        graph: Graph | None,
        offset: int | None = None,
    ) -> Float[Tensor, "1 h n n"] | None:
        """m_{dx, dy} of all pairs."""
        return self.table[:, window_entries(self.window, q.shape[-2], q.device)][None]
