"""GLU and dynamic convolution: filters made from the token that listens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.layers.mixers.mixer import Mixer, check_filters, without_padding
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself
from everyformer.ops import dynamic_convolution
from everyformer.papers import YUN2020, implements


@describes_itself(in_proj=nn.Linear, filter_proj=nn.Linear, out_proj=nn.Linear)
@implements(YUN2020, "Section 6.2")
class DynamicConvolution(Mixer):
    """A gate, a convolution whose filters the token makes, a projection (Wu et al. 2019).

        u   = (A x + a) ⊙ sigmoid(B x + b)
        w_i = softmax over k of (F u_i + f), H filters of length K
        y_i = W_O (sum_k w_i^{h(c)}_k u_{i + k - l, c})_c + b_O,    h(c) = c // (d / H)

    `LightConvolution` with filters that depend on the token i, and on no other: with F = 0
    it is that layer with `normalised=True`. l = (K - 1) // 2 tokens come from the left, the
    rest from the right, zeros beyond the ends. For any n.

    Args:
        dim: Size of a token, d.
        filters: Number of filters of a token, H; dim must be a multiple.
        filter_length: K, odd or even.
        bias: Whether the projections have one.
        device: As in torch.
        dtype: As in torch.

    Raises:
        InputError: If dim is not a multiple of filters.

    Example:
        >>> mixer = DynamicConvolution(8, filters=2, filter_length=5)
        >>> mixer(torch.randn(3, 4, 8)).shape
        torch.Size([3, 4, 8])
    """

    def __init__(
        self,
        dim: int,
        *,
        filters: int = 16,
        filter_length: int = 128,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, bias=bias, device=device, dtype=dtype)
        check_filters(dim, filters, filter_length)
        self.filters, self.filter_length = filters, filter_length
        self.in_proj = nn.Linear(dim, 2 * dim, bias=bias, device=device, dtype=dtype)
        self.filter_proj = nn.Linear(
            dim, filters * filter_length, bias=bias, device=device, dtype=dtype
        )

    def mixed(
        self,
        x: Float[Tensor, "*batch n d"],
        key_padding_mask: Bool[Tensor, "*batch n"] | None,
    ) -> Float[Tensor, "*batch n d"]:
        """Gated and convolved; padding counts as zeros in the convolution."""
        gated = nn.functional.glu(self.in_proj(x))
        made = self.filter_proj(gated).unflatten(-1, (self.filters, self.filter_length))
        return dynamic_convolution(
            without_padding(gated, key_padding_mask), made.softmax(-1)
        )

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What it can do, whatever its weights."""
        return AttentionSpec(
            "dynamic",
            value_bias=self.has_bias,
            query_bias="bias" in dict(self.filter_proj.named_parameters()),
            mixing="offsets",
            filter_length=self.filter_length,
            gated=True,
        )

    def extra_repr(self) -> str:
        """The filters."""
        return f"filters={self.filters}, filter_length={self.filter_length}"
