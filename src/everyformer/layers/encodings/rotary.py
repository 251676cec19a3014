"""Rotary encoding: queries and keys are turned by angles that grow with the position."""

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.errors import InputError
from everyformer.layers.encodings.encoding import Encoding
from everyformer.model.own_classes import describes_itself


@describes_itself()
class Rotary(Encoding):
    """logits_ij = scale (R_i q_i) . (R_j k_j), R_i^T R_j a function of i - j.

    R_i turns coordinates (t, t + d/2) by the angle i theta^(-2 t / d), t = 0..d/2-1, as the
    models of the LLaMA family pair them. For any length, without parameters.
    """

    name = "rotary"
    rotates = True

    def __init__(self, theta: float = 10000.0) -> None:
        """`theta` sets the slowest angle."""
        super().__init__()
        if not theta > 0:
            msg = f"theta={theta} gives no angles: they are powers of it. Use 10000."
            raise InputError(msg)
        self.theta = theta

    def check_layer(self, num_heads: int, head_dim: int) -> None:
        """Coordinates are turned in pairs."""
        if head_dim % 2:
            msg = (
                f"Heads have {head_dim} coordinates, but a rotary encoding turns them in "
                "pairs. Choose embed_dim / num_heads even."
            )
            raise InputError(msg)

    def rotate(
        self, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n d"]]:
        """R_i q_i and R_j k_j."""
        n, d = q.shape[-2:]
        dtype = torch.promote_types(q.dtype, torch.float32)
        pair = torch.arange(0, d, 2, dtype=dtype, device=q.device) / d
        position = torch.arange(n, dtype=dtype, device=q.device)
        angle = position[:, None] * self.theta**-pair  # [n, d / 2]
        cos, sin = angle.cos(), angle.sin()
        return _turned(q, cos, sin), _turned(k, cos, sin)

    def extra_repr(self) -> str:
        """The base of the angles."""
        return f"theta={self.theta}"


def _turned(
    x: Float[Tensor, "b h n d"], cos: Float[Tensor, "n half"], sin: Float[Tensor, "n half"]
) -> Float[Tensor, "b h n d"]:
    first, second = x.to(cos.dtype).chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)
