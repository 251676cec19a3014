"""Average attention: every token sees the mean of all."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.layers.mixers.mixer import Mixer, without_padding
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself
from everyformer.papers import YUN2020, implements


@describes_itself(out_proj=nn.Linear)
@implements(YUN2020, "Appendix D")
class AverageAttention(Mixer):
    """y_i = W_O (1/n sum_j x_j) + b: attention whose softmax matrix is full of 1/n.

    One d x d projection, as the 88.3M parameters of Table 1 of Yun et al. 2020 have it.

    Args:
        dim: Size of a token.
        bias: Whether the projection has one.
        device: As in torch.
        dtype: As in torch.

    Example:
        >>> mixer = AverageAttention(4)
        >>> y = mixer(torch.randn(2, 7, 4))
        >>> bool((y == y[:, :1]).all())
        True
    """

    def mixed(
        self,
        x: Float[Tensor, "*batch n d"],
        key_padding_mask: Bool[Tensor, "*batch n"] | None,
    ) -> Float[Tensor, "*batch 1 d"]:
        """The mean of all tokens that are not padding.

        Where all are padding the mean is 0. Sums of half precision are float32.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        total = without_padding(x, key_padding_mask).sum(-2, keepdim=True, dtype=wide)
        if key_padding_mask is None:
            mean = total / x.shape[-2]
        else:
            seen = (~key_padding_mask).sum(-1).clamp(min=1)
            mean = total / seen[..., None, None]
        return mean.to(x.dtype)

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What it can do, whatever its weights."""
        return AttentionSpec("average", value_bias=self.has_bias, mixing="average")
