"""What is timed must be right first: against float64, beside a peer, and twice alike."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everyformer.errors import EveryformerError

Function = Callable[..., Tensor]


def gate_row(
    what: str,
    about: dict[str, Any],
    tensors: list[Tensor],
    ours: Function,
    peer: tuple[str, Function],
    exact: Function,
) -> dict[str, Any]:
    """Errors of ours and of a peer in the same dtype: of the output and all gradients.

    Args:
        what: What is measured, for the refusal.
        about: What the row says of the case.
        tensors: The arguments, and the gradient of the output.
        ours: What will be timed.
        peer: Name of the one to compare with, and itself.
        exact: What is right, run in float64.

    Raises:
        EveryformerError: If ours errs by more than twice the peer, or is not repeatable.
    """
    name, other = peer
    wanted = _results(exact, [x.detach().double() for x in tensors])
    mine, again, theirs = (_results(f, tensors) for f in (ours, ours, other))
    same = all(map(torch.equal, mine, again))
    errors, limits = (list(map(_error, found, wanted)) for found in (mine, theirs))
    row = about | {"bit_identical": same}
    row |= {"error_sampled": errors, f"{name}_error_sampled": limits}
    near = all(e <= 2 * m + 1e-6 for e, m in zip(errors, limits, strict=True))
    if not same or not near:
        msg = f"{what} fails its gate and is not timed: {row}."
        raise EveryformerError(msg)
    return row


def masked_attention(mask: Tensor) -> Function:
    """Dense attention in which query k hears key j where mask[k, j] is True."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -math.inf)
        return torch.softmax(scores, -1) @ v

    return attend


def _results(function: Function, tensors: list[Tensor]) -> list[Tensor]:
    """The output and the gradients."""
    *given, upstream = (x.detach() for x in tensors)
    leaves = [x.clone().requires_grad_() for x in given]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.to(out.dtype))]


def _error(found: Tensor, exact: Tensor) -> float:
    """The largest error, as a share of the largest entry."""
    gap = (found.double() - exact).abs().max()
    return float(gap / exact.abs().max().clamp_min(1e-30))
