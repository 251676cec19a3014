"""What all mixers share: their signature, their checks and the projection at the end."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.models.token_input import check_tokens
from everyformer.layers.offsets import check_positive
from everyformer.model.attention_spec import AttentionSpec


class Mixer(nn.Module, ABC):
    """y = W_O mixed(x) + b: one number for each dimension and token, then a projection.

    The skip connection is not part of a mixer; the block of an encoder adds it. The
    signature is that of `RelativeAttention`.

    Args:
        dim: Size of a token.
        bias: Whether W_O has one.
        device: As in torch.
        dtype: As in torch.
    """

    def __init__(
        self,
        dim: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.dim = dim
        self.out_proj = nn.Linear(dim, dim, bias=bias, device=device, dtype=dtype)

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        key_padding_mask: Bool[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "*batch n d"]:
        """Mix the tokens.

        Args:
            x: Tokens.
            key_padding_mask: True for tokens that nobody sees.

        Raises:
            InputError: If shapes or dtypes do not fit; all reasons at once.
        """
        check_tokens(self, x, self.dim, key_padding_mask)
        return self.out_proj(self.mixed(x, key_padding_mask)).expand_as(x)

    @abstractmethod
    def mixed(
        self,
        x: Float[Tensor, "*batch n d"],
        key_padding_mask: Bool[Tensor, "*batch n"] | None,
    ) -> Float[Tensor, "*batch n_or_1 d"]:
        """What the projection sees: a row for each token, or one for all."""

    @property
    def has_bias(self) -> bool:
        """Whether the projection has one."""
        return "bias" in dict(self.out_proj.named_parameters())

    @abstractmethod
    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What it can do, whatever its weights."""


def check_filters(dim: int, filters: int, filter_length: int) -> None:
    """Filters, each for a contiguous group of as many dimensions.

    Raises:
        InputError: If a number is not positive, or the groups would be unequal.
    """
    check_positive(filters=filters, filter_length=filter_length)
    if dim % filters:
        msg = (
            f"dim={dim} is not a multiple of filters={filters}, so filters would serve "
            f"groups of unequal size; the next multiple is {filters * -(-dim // filters)}."
        )
        raise InputError(msg)


def without_padding(
    x: Float[Tensor, "*batch n d"], key_padding_mask: Bool[Tensor, "*batch n"] | None
) -> Float[Tensor, "*batch n d"]:
    """x with zeros for the tokens that nobody sees."""
    if key_padding_mask is None:
        return x
    return x.masked_fill(key_padding_mask[..., None], 0.0)
