"""The convolution and its gradient by the filters, as PyTorch has them.

Both for any device and dtype. They are the specification of the faster paths, and what
runs where those do not: few dimensions for a filter, or float64 on a GPU.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv1d_weight


def convolve(
    x: Float[Tensor, "b n d"], filters: Float[Tensor, "h k"], left: int
) -> Float[Tensor, "b n d"]:
    """y_ic = sum_k filters[c // (d / h), k] x_{i + k - left, c}, zeros beyond the ends."""
    length, d = filters.shape[1], x.shape[2]
    padded = functional.pad(x.mT, (left, length - 1 - left))
    each = filters.to(x.dtype).repeat_interleave(d // filters.shape[0], 0)
    return functional.conv1d(padded, each[:, None], groups=d).mT


def filter_gradient(
    grad: Float[Tensor, "b n d"],
    x: Float[Tensor, "b n d"],
    count: int,
    length: int,
    left: int,
) -> Float[Tensor, "{count} {length}"]:
    """sum_{b, i, c of group h} grad_bic x_{b, i + k - left, c}; float32 or float64."""
    wide, d = torch.promote_types(x.dtype, torch.float32), x.shape[2]
    padded = functional.pad(x.mT.to(wide), (left, length - 1 - left))
    each = conv1d_weight(padded, (d, 1, length), grad.mT.to(wide).contiguous(), groups=d)
    return each.view(count, d // count, length).sum(1)
