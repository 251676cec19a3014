"""Products of many small matrices, some of which torch computes one number at a time."""

import torch
from jaxtyping import Float
from torch import Tensor


def product(
    a: Float[Tensor, "b m k"], b: Float[Tensor, "b k n"], scale: float = 1.0
) -> Float[Tensor, "b m n"]:
    """scale a b of each; without a loop over them where a row or a number is enough."""
    if a.shape[2] == 1:
        return (a if scale == 1.0 else a * scale) * b
    if a.shape[1] == b.shape[2] == 1:
        return (a * b.mT).sum(-1, keepdim=True).mul_(scale)
    nothing = a.new_empty(())  # torch does not read it, and scales while it multiplies
    return torch.baddbmm(nothing, a, b, beta=0, alpha=scale)
