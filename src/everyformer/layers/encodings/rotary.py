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
        self,
        q: Float[Tensor, "b h n_q d"],
        k: Float[Tensor, "b h_k n_k d"],
        first_query: int = 0,
        first_key: int = 0,
    ) -> tuple[Float[Tensor, "b h n_q d"], Float[Tensor, "b h_k n_k d"]]:
        """R_i q_i and R_j k_j, i from first_query, j from first_key."""
        return self._turned(q, first_query), self._turned(k, first_key)

    def _turned(self, x: Float[Tensor, "b h n d"], first: int) -> Float[Tensor, "b h n d"]:
        """R_i x_i for i from `first`."""
        n, d = x.shape[-2:]
        dtype = torch.promote_types(x.dtype, torch.float32)
        pair = torch.arange(0, d, 2, dtype=dtype, device=x.device) / d
        place = torch.arange(first, first + n, dtype=dtype, device=x.device)
        angle = place[:, None] * self.theta**-pair  # [n, d / 2]
        cos, sin = angle.cos(), angle.sin()
        front, back = x.to(dtype).chunk(2, -1)
        turned = torch.cat([front * cos - back * sin, back * cos + front * sin], -1)
        return turned.to(x.dtype)

    def extra_repr(self) -> str:
        """The base of the angles."""
        return f"theta={self.theta}"
