"""The skip connection of a block, around a layer that has none."""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.mixers.mixer import Mixer
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import describes_itself


@describes_itself(layer=nn.Module)
class Residual(nn.Module):
    """x + layer(x), as blocks have it (Equations 1, 5 and 6 of Yun et al. 2020).

    Args:
        layer: A module that maps (*batch, n, d) to the same shape.

    Example:
        >>> import torch
        >>> Residual(nn.Identity())(torch.ones(1, 2, 1)).flatten().tolist()
        [2.0, 2.0]
    """

    def __init__(self, layer: nn.Module) -> None:
        """A layer whose input is added to its output."""
        super().__init__()
        self.layer = layer

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """The tokens, and what the layer makes of them."""
        return x + self.layer(x)

    def spec(self, seq_len: int | None = None) -> AttentionSpec:
        """What a mixer says of itself, with the skip connection.

        Raises:
            InputError: If the layer is not a mixer: positions that it adds to its tokens
                would not reach the skip connection.
        """
        if not isinstance(self.layer, Mixer):
            msg = (
                f"Residual({type(self.layer).__name__}) describes itself for mixers alone. "
                "Put positions around it: AbsolutePositions(Residual(mixer), n, d)."
            )
            raise InputError(msg)
        return replace(self.layer.spec(seq_len), skip=True)
