"""The operator: checks, and the way of each call.

On a CUDA device the Triton kernels run, elsewhere the banded path, and plain torch where
neither is worth it: as a custom op (`library`), or by `torch.func` (`derivatives`).
"""

from jaxtyping import Float
from torch import Tensor

from everyformer.errors import refuse
from everyformer.ops.convolving import convolved, of_numbers
from everyformer.ops.dynamic_convolution import reference
from everyformer.ops.dynamic_convolution.derivatives import Mix
from everyformer.ops.dynamic_convolution.library import mix_op
from everyformer.ops.eager import autocasted


def dynamic_convolution(
    x: Float[Tensor, "*batch n d"], filters: Float[Tensor, "*batch n h k"]
) -> Float[Tensor, "*batch n d"]:
    """Convolve the tokens of x, each token with h filters of its own.

        y_ic = sum_k filters[i, c // (d / h), k] x_{i + k - l, c},    l = (K - 1) // 2

    Tokens beyond the ends are zeros, as in `light_convolution`, which this is if all tokens
    have the same filters. Gradients go to both; sums of half precision are float32.

    Args:
        x: Tokens as rows.
        filters: Of any length, in any floating-point dtype.

    Raises:
        InputError: If shapes, dtypes or devices do not fit; all reasons at once.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> filters = torch.tensor([[[1.0, 1.0]], [[0.0, 1.0]], [[5.0, 9.0]]])
        >>> dynamic_convolution(x, filters).T
        tensor([[ 3.,  3., 15.]])
    """
    _check(x, filters)
    (x,) = autocasted(x)
    if x.numel() == 0:
        return x * filters.sum()
    n, length = x.shape[-2], filters.shape[-1]
    left = (length - 1) // 2
    lost = max(0, left - n + 1)  # taps to the left that no token reaches, or the right
    reached = filters[..., lost : left + n]
    own = reached.reshape(-1, *reached.shape[-3:])
    tokens, left = x.reshape(-1, *x.shape[-2:]), left - lost
    found = convolved(reference.mix, Mix, mix_op, own.shape[2], tokens, own, left, False)
    return found.reshape(x.shape)


def _check(x: Tensor, filters: Tensor) -> None:
    wrong: list[str] = []
    if filters.dim() < 3 or 0 in filters.shape[-2:]:
        wrong.append(
            f"filters has shape {tuple(filters.shape)}; give (*batch, n, h, k), h filters "
            "for each token"
        )
    elif x.dim() < 2 or x.shape[:-1] != filters.shape[:-2]:
        wrong.append(
            f"x has shape {tuple(x.shape)} and filters {tuple(filters.shape)}; filters of "
            "shape (*batch, n, h, k) need x of shape (*batch, n, d)"
        )
    elif x.shape[-1] % filters.shape[-2]:
        wrong.append(
            f"x has d={x.shape[-1]}; {filters.shape[-2]} filters need a multiple of "
            f"{filters.shape[-2]}"
        )
    wrong += of_numbers(x, filters)
    refuse("dynamic_convolution cannot run", wrong)
