"""Two ways out of Theorem 2 of Luo et al. 2022 that work for any layer."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.encodings.encoding import table
from everyformer.layers.offsets import check_positive
from everyformer.model.attention_spec import AttentionSpec, spec_of
from everyformer.model.own_classes import describes_itself


@describes_itself(layer=nn.Module)
class AbsolutePositions(nn.Module):
    """Learnable positions added to the tokens, then a layer: layer(x + E).

    Args:
        layer: A module that maps (*batch, n, d) to the same shape.
        max_len: Longest sequence.
        embed_dim: Size of a token.
        device: As in torch.
        dtype: As in torch.

    Example:
        >>> layer = AbsolutePositions(nn.Identity(), max_len=4, embed_dim=2)
        >>> layer(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        layer: nn.Module,
        max_len: int,
        embed_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(max_len=max_len, embed_dim=embed_dim)
        self.layer = layer
        self.positions = table(max_len, embed_dim, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """The layer on tokens with positions.

        Raises:
            InputError: If the sequence is longer than max_len.
        """
        n = x.shape[-2]
        if n > self.positions.shape[0]:
            msg = (
                f"x has {n} tokens, but positions for {self.positions.shape[0]} were made. "
                "Make the layer with a larger max_len."
            )
            raise InputError(msg)
        return self.layer(x + self.positions[:n])

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What the layer says of itself, with positions."""
        inner = inner_spec(self.layer, seq_len)
        name = "ape" if inner.name == "none" else f"{inner.name}+ape"
        return replace(inner, name=name, absolute=True)


@describes_itself(layer=nn.Module)
class SpecialToken(nn.Module):
    """A learnable token put before the others, then a layer; its own output is dropped.

    Args:
        layer: A module that maps (batch, n, d) to the same shape.
        embed_dim: Size of a token.
        device: As in torch.
        dtype: As in torch.
    """

    def __init__(
        self,
        layer: nn.Module,
        embed_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(embed_dim=embed_dim)
        self.layer = layer
        self.token = table(1, embed_dim, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """The outputs of the tokens of x."""
        first = self.token.expand(*x.shape[:-2], 1, x.shape[-1])
        return self.layer(torch.cat([first, x], dim=-2))[..., 1:, :]

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What the layer says of itself, with a special token."""
        inner = inner_spec(self.layer, None if seq_len is None else seq_len + 1)
        return replace(inner, name=f"{inner.name}+special-token", special_token=True)


def inner_spec(layer: nn.Module, seq_len: int | None = None) -> AttentionSpec:
    """The spec of a layer, at a length.

    Raises:
        InputError: If it has none.
    """
    found = spec_of(layer, seq_len)
    if found is None:
        msg = (
            f"{type(layer).__name__} has no spec(), so nothing is known of it for all "
            "weights. Use a layer of everyformer.layers, or give yours a spec()."
        )
        raise InputError(msg)
    return found
