"""The three maps as sums over taps, in plain torch: the specification of the other paths.

`mix` is C(x, w), or its transpose B(x, w) with `back`; `band` is G(g, x).
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


def mix(
    x: Float[Tensor, "b n d"], weights: Float[Tensor, "b n h k"], left: int, back: bool
) -> Float[Tensor, "b n d"]:
    """y_ic = sum_k w[i, h, k] x[i + k - left, c].

    With `back`, y_jc = sum_k w[j - k + left, h, k] x[j - k + left, c].
    """
    n, (count, length) = x.shape[1], weights.shape[2:]
    right = length - 1 - left
    each, taps = x.unflatten(2, (count, -1)), weights.to(x.dtype).unbind(3)
    if back:
        moved = [functional.pad(each * w[..., None], _ends(right, left)) for w in taps]
        parts = [y[:, length - 1 - k : length - 1 - k + n] for k, y in enumerate(moved)]
    else:
        padded = functional.pad(each, _ends(left, right))
        parts = [padded[:, k : k + n] * w[..., None] for k, w in enumerate(taps)]
    return torch.stack(parts).sum(0).flatten(2)


def band(
    grad: Float[Tensor, "b n d"],
    x: Float[Tensor, "b n d"],
    count: int,
    length: int,
    left: int,
) -> Float[Tensor, "b n {count} {length}"]:
    """sum_{c of group h} grad_ic x_{i + k - left, c}; float32 or float64."""
    wide, n = torch.promote_types(x.dtype, torch.float32), x.shape[1]
    g, each = (y.to(wide).unflatten(2, (count, -1)) for y in (grad, x))
    padded = functional.pad(each, _ends(left, length - 1 - left))
    return torch.stack([(padded[:, k : k + n] * g).sum(3) for k in range(length)], 3)


def _ends(before: int, after: int) -> tuple[int, ...]:
    """Zeros around the tokens of (b, n, h, r)."""
    return (0, 0, 0, 0, before, after)
