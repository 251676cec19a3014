"""What the operator is given, in the one order in which all its functions take it.

Functions that torch calls (custom ops, `autograd.Function`) take the fields one by one: the
operands first, and in the backward pass what belongs to it after them.
"""

from typing import NamedTuple

from torch import Tensor


class Operands(NamedTuple):
    """The arguments of the forward pass: tensors, then numbers.

    Attributes:
        q: Queries, (b, h, n_q, d).
        k: Keys, (b, h_k, n_k, d); h / h_k heads of queries share a head of keys.
        v: Values, (b, h_k, n_k, d).
        bias: Added to the scores by offset, (h or 1, n_q + n_k - 1).
        gain: Multiplied on the weights by offset, (h or 1, n_q + n_k - 1).
        key_padding: True for keys that do not count, (b, n_k).
        attn_mask: True for pairs that count, or numbers added to the scores,
            (b or 1, h or 1, n_q or 1, n_k or 1).
        sequences: Where packed sequences begin, and where the last one ends.
        seed: Of the weights that are dropped, one int64.
        causal: Whether query i attends to keys j <= i + offset only.
        scale: Of the scores.
        offset: The place of the first query, if that of the first key is 0.
        dropout: The share of weights that are dropped.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    gain: Tensor | None = None
    key_padding: Tensor | None = None
    attn_mask: Tensor | None = None
    sequences: Tensor | None = None
    seed: Tensor | None = None
    causal: bool = False
    scale: float = 1.0
    offset: int = 0
    dropout: float = 0.0

    @property
    def along_batch(self) -> tuple[bool, ...]:
        """Whether the first axis of each field is the batch."""
        mask = self.attn_mask
        own = mask is not None and mask.dim() == 4 and mask.shape[0] > 1
        return *[True] * 3, False, False, True, own, *[False] * 6

    @property
    def group(self) -> int:
        """Heads of queries for each head of keys."""
        return self.q.shape[1] // self.k.shape[1]


TENSORS = 9
DIFFERENTIABLE = 5
"""The first fields: these are tensors, and those have gradients."""

HIDES = -1e30
"""Numbers of a mask up to this one hide their pair, as -inf does.

In float32 nothing would be left of the score beside them, and a row of such numbers has
no weights that a backward pass could find again.
"""


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
