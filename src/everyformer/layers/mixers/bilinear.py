"""Bi-linear projection: one matrix for the features, one for the positions."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.encodings.encoding import table
from everyformer.layers.mixers.mixer import Mixer, without_padding
from everyformer.layers.offsets import check_positive
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself
from everyformer.papers import YUN2020, implements


@describes_itself(out_proj=nn.Linear)
@implements(YUN2020, "Equation 5")
class BilinearProjection(Mixer):
    """Y = W_P X W_O^T + b, tokens as rows: BProj(X) - X (paper: X = x^T, W_O X W_P).

    `position_weight[i, j]` says how much of token j goes to token i (the paper's W_P,
    transposed); Gaussian at the start. Both orders of the two products take n d (n + d)
    multiplications; the positions come first, so that the bias is not mixed. The number
    of parameters depends on n: another length is refused.

    This is not `torch.nn.Bilinear`, which is x_1^T A x_2 for two inputs.

    Args:
        dim: Size of a token, d.
        seq_len: Number of tokens, n.
        shorter: Whether n' < n tokens are taken, with the leading n' x n' part of the
            positions.
        bias: Whether W_O has one.
        device: As in torch.
        dtype: As in torch.

    Example:
        >>> BilinearProjection(4, seq_len=7)(torch.randn(2, 7, 4)).shape
        torch.Size([2, 7, 4])
    """

    def __init__(
        self,
        dim: int,
        seq_len: int,
        *,
        shorter: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, bias=bias, device=device, dtype=dtype)
        check_positive(seq_len=seq_len)
        self.seq_len = seq_len
        self.shorter = shorter
        self.position_weight = table(seq_len, seq_len, device=device, dtype=dtype)

    def mixed(
        self,
        x: Float[Tensor, "*batch n d"],
        key_padding_mask: Bool[Tensor, "*batch n"] | None,
    ) -> Float[Tensor, "*batch n d"]:
        """W_P X; padding counts as zeros.

        Raises:
            InputError: If n is not the length the layer was made for.
        """
        n = x.shape[-2]
        if n > self.seq_len or (n < self.seq_len and not self.shorter):
            way = (
                "Cut the sequence, or make the layer with a larger seq_len"
                if n > self.seq_len
                else "Pad it with key_padding_mask, or make the layer with shorter=True to "
                "use the leading part of the matrix"
            )
            msg = (
                f"x has {n} tokens, but the position matrix of this BilinearProjection is "
                f"{self.seq_len} x {self.seq_len}, one row for each token. {way}."
            )
            raise InputError(msg)
        positions = self.position_weight[:n, :n]
        seen = without_padding(x, key_padding_mask)
        return torch.matmul(positions.to(x.dtype), seen)

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What it can do, whatever its weights."""
        return AttentionSpec("bilinear", value_bias=self.has_bias, mixing="positions")

    def extra_repr(self) -> str:
        """The sizes."""
        return f"dim={self.dim}, seq_len={self.seq_len}, shorter={self.shorter}"
