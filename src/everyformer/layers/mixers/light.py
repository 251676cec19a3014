"""GLU and lightweight convolution: few filters, each for a group of dimensions."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.layers.encodings.encoding import table
from everyformer.layers.mixers.mixer import Mixer, check_filters, without_padding
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself
from everyformer.ops import light_convolution
from everyformer.papers import YUN2020, implements


@describes_itself(in_proj=nn.Linear, out_proj=nn.Linear)
@implements(YUN2020, "Appendix D")
class LightConvolution(Mixer):
    """A gate, a convolution with shared filters, a projection.

        u = (A x + a) ⊙ sigmoid(B x + b)
        y_i = W_O (sum_k w_k^{h(c)} u_{i + k - l, c})_c + b_O,    h(c) = c // (d / H)

    Dimension c uses filter h(c): contiguous groups of d / H dimensions share one, with 16
    filters of length 128 for 768 dimensions as in Yun et al. 2020. l = (K - 1) // 2 tokens
    come from the left, the rest from the right, zeros beyond the ends. For any n.

    Args:
        dim: Size of a token, d.
        filters: Number of filters, H; dim must be a multiple.
        filter_length: K, odd or even.
        normalised: Whether a softmax over k makes each filter a mean (Wu et al. 2019);
            Yun et al. do not say that they use it.
        bias: Whether the projections have one.
        device: As in torch.
        dtype: As in torch.

    Raises:
        InputError: If dim is not a multiple of filters.

    Example:
        >>> mixer = LightConvolution(8, filters=2, filter_length=5)
        >>> mixer(torch.randn(3, 4, 8)).shape
        torch.Size([3, 4, 8])
    """

    def __init__(
        self,
        dim: int,
        *,
        filters: int = 16,
        filter_length: int = 128,
        normalised: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, bias=bias, device=device, dtype=dtype)
        check_filters(dim, filters, filter_length)
        self.normalised = normalised
        self.in_proj = nn.Linear(dim, 2 * dim, bias=bias, device=device, dtype=dtype)
        self.filters = table(filters, filter_length, device=device, dtype=dtype)

    def mixed(
        self,
        x: Float[Tensor, "*batch n d"],
        key_padding_mask: Bool[Tensor, "*batch n"] | None,
    ) -> Float[Tensor, "*batch n d"]:
        """Gated and convolved; padding counts as zeros in the convolution."""
        gated = nn.functional.glu(self.in_proj(x))
        seen = without_padding(gated, key_padding_mask)
        filters = self.filters.softmax(-1) if self.normalised else self.filters
        return light_convolution(seen, filters)

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What it can do, whatever its weights."""
        return AttentionSpec(
            "light",
            value_bias=self.has_bias,
            mixing="offsets",
            filter_length=self.filters.shape[1],
            gated=True,
        )

    def extra_repr(self) -> str:
        """The filters."""
        count, length = self.filters.shape
        return f"filters={count}, filter_length={length}, normalised={self.normalised}"
