"""Depth-wise separable convolution: an own filter for every dimension."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.layers.encodings.encoding import table
from everyformer.layers.mixers.mixer import Mixer, without_padding
from everyformer.layers.offsets import check_positive
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself
from everyformer.ops import light_convolution
from everyformer.papers import YUN2020, implements


@describes_itself(out_proj=nn.Linear)
@implements(YUN2020, "Equation 6")
class SeparableConvolution(Mixer):
    """y_i = W_O (sum_k w_k ⊙ x_{i + k - l}) + b, l = (K - 1) // 2: SepConv(X) - X.

    `filters[c, k]` is w_k of dimension c. Tokens before the first and after the last are
    zeros: l of them on the left, the rest, K - 1 - l, on the right. For any n.

    Args:
        dim: Size of a token.
        filter_length: K, odd or even.
        bias: Whether W_O has one.
        device: As in torch.
        dtype: As in torch.

    Example:
        >>> SeparableConvolution(4, filter_length=6)(torch.randn(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        dim: int,
        filter_length: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, bias=bias, device=device, dtype=dtype)
        check_positive(filter_length=filter_length)
        self.filters = table(dim, filter_length, device=device, dtype=dtype)

    def mixed(
        self,
        x: Float[Tensor, "*batch n d"],
        key_padding_mask: Bool[Tensor, "*batch n"] | None,
    ) -> Float[Tensor, "*batch n d"]:
        """Each dimension convolved; padding counts as zeros."""
        seen = without_padding(x, key_padding_mask)
        return light_convolution(seen, self.filters)

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What it can do, whatever its weights."""
        return AttentionSpec(
            "separable",
            value_bias=self.has_bias,
            mixing="offsets",
            filter_length=self.filters.shape[1],
        )
