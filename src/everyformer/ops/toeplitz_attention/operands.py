"""What the operator is given, in the one order in which all its functions take it.

Functions that torch calls (custom ops, `autograd.Function`) take the fields one by one: the
operands first, and in the backward pass what belongs to it after them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Operands(NamedTuple):
    """The arguments of the forward pass.

    Attributes:
        q: Queries, (b, h, n_q, d).
        k: Keys, (b, h, n_k, d).
        v: Values, (b, h, n_k, d).
        bias: Added to the scores by offset, (h or 1, n_q + n_k - 1).
        gain: Multiplied on the weights by offset, (h or 1, n_q + n_k - 1).
        key_padding: True for keys that do not count, (b, n_k).
        causal: Whether query i attends to keys j <= i only.
        scale: Of the scores.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    gain: Tensor | None
    key_padding: Tensor | None
    causal: bool
    scale: float


class Incoming(NamedTuple):
    """What the backward pass takes beside the operands.

    Attributes:
        grad_out: The gradient of the output, (b, h, n_q, d).
        out: The output, (b, h, n_q, d).
        lse: The logarithm of each query's sum of exponentials, (b, h, n_q).
        table: What the kernels made of bias and gain; empty if it is to be made.
        needs_bias: Whether the gradient of the bias is wanted.
        needs_gain: Whether the gradient of the gain is wanted.
    """

    grad_out: Tensor
    out: Tensor
    lse: Tensor
    table: Tensor
    needs_bias: bool
    needs_gain: bool


def split(given: Sequence[Any]) -> tuple[Operands, Incoming]:
    """The arguments of the backward pass, as torch has them: one after the other."""
    operands = len(Operands._fields)
    return Operands(*given[:operands]), Incoming(*given[operands:])
