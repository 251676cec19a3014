"""What the operator is given, in the one order in which all its functions take it.

Functions that torch calls (custom ops, `autograd.Function`) take the fields one by one: the
operands first, and in the backward pass what belongs to it after them.
"""

from typing import NamedTuple

from torch import Tensor


class Operands(NamedTuple):
    """The arguments of the forward pass.

    Attributes:
        q: Queries, (b, h, n_q, d).
        k: Keys, (b, h, n_k, d).
        v: Values, (b, h, n_k, d).
        c2p: What each query says of each bucket, (b, h, n_q, buckets).
        p2c: What each key says of each bucket, (b, h, n_k, buckets).
        bucket_of: The bucket of each offset, (n_q + n_k - 1).
        key_padding: True for keys that do not count, (b, n_k).
        seed: Of the weights that are dropped, one int64.
        scale: Of the scores.
        dropout: The share of weights that are dropped.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    c2p: Tensor | None
    p2c: Tensor | None
    bucket_of: Tensor
    key_padding: Tensor | None
    seed: Tensor | None
    scale: float
    dropout: float

    @property
    def buckets(self) -> int:
        """Their number; 1 if there are none."""
        there = [x for x in (self.c2p, self.p2c) if x is not None]
        return there[0].shape[-1] if there else 1

    @property
    def along_batch(self) -> tuple[bool, ...]:
        """Whether the first axis of each field is the batch."""
        return *[True] * 5, False, True, *[False] * 3


class Incoming(NamedTuple):
    """What the backward pass takes beside the operands.

    Attributes:
        grad_out: The gradient of the output, (b, h, n_q, d).
        out: The output, (b, h, n_q, d).
        lse: The logarithm of each query's sum of exponentials, (b, h, n_q).
        needs_c2p: Whether the gradient of c2p is wanted.
        needs_p2c: Whether the gradient of p2c is wanted.
    """

    grad_out: Tensor
    out: Tensor
    lse: Tensor
    needs_c2p: bool
    needs_p2c: bool
