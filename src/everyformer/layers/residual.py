"""The skip connection of a block, around a layer that has none."""

from jaxtyping import Float
from torch import Tensor, nn


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
        """See the class."""
        super().__init__()
        self.layer = layer

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """The tokens, and what the layer makes of them."""
        return x + self.layer(x)
