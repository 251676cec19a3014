"""The operator: checks, and the way of each call.

On a CUDA device the Triton kernels run, elsewhere the blocked path, and `F.conv1d` where
neither is worth it: as a custom op (`library`), or by `torch.func` (`derivatives`).
"""

from jaxtyping import Float
from torch import Tensor

from everyformer.errors import refuse
from everyformer.ops.convolving import convolved, of_numbers
from everyformer.ops.eager import autocasted
from everyformer.ops.light_convolution import reference
from everyformer.ops.light_convolution.derivatives import Convolve
from everyformer.ops.light_convolution.library import convolve_op


def light_convolution(
    x: Float[Tensor, "*batch n d"], filters: Float[Tensor, "h k"]
) -> Float[Tensor, "*batch n d"]:
    """Convolve the tokens of x, each filter on a contiguous group of d / h dimensions.

        y_ic = sum_k filters[c // (d / h), k] x_{i + k - l, c},    l = (K - 1) // 2

    Tokens beyond the ends are zeros: l on the left, K - 1 - l on the right, so that n stays
    n for every K, odd or even. With h = d every dimension has its own filter. Gradients go
    to both; sums of half precision are float32.

    Args:
        x: Tokens as rows.
        filters: Of any length, in any floating-point dtype.

    Raises:
        InputError: If shapes, dtypes or devices do not fit; all reasons at once.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
        >>> light_convolution(x, torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        tensor([[ 3., 40.],
                [ 5., 60.],
                [ 3.,  0.]])
    """
    _check(x, filters)
    (x,) = autocasted(x)
    if x.numel() == 0:
        return x * filters.sum()
    tokens, left = x.reshape(-1, *x.shape[-2:]), (filters.shape[1] - 1) // 2
    found = convolved(
        reference.convolve, Convolve, convolve_op, filters.shape[0], tokens, filters, left
    )
    return found.reshape(x.shape)


def _check(x: Tensor, filters: Tensor) -> None:
    wrong: list[str] = []
    if filters.dim() != 2 or 0 in filters.shape:
        wrong.append(
            f"filters has shape {tuple(filters.shape)}; give (h, k), a row for each filter"
        )
    elif x.dim() < 2 or x.shape[-1] % filters.shape[0]:
        wrong.append(
            f"x has shape {tuple(x.shape)}; {filters.shape[0]} filters need (*batch, n, d) "
            f"with d a multiple of {filters.shape[0]}"
        )
    wrong += of_numbers(x, filters)
    refuse("light_convolution cannot run", wrong)
