"""What the operator is given, in the one order in which all its functions take it."""

from typing import NamedTuple

from torch import Tensor

from everyformer.ops.sparse_attention.plans import PreparedPart


class Operands(NamedTuple):
    """The arguments of the forward pass: tensors, then the plan, then numbers.

    Attributes:
        q: Queries, (b, h, n, d).
        k: Keys, (b, h, n, d).
        v: Values, (b, h, n, d).
        key_padding: True for keys that do not count, (b, n).
        seed: Of the weights that are dropped, one int64.
        plan: What is prepared for the pattern; custom ops take its handle instead.
        scale: Of the scores.
        dropout: Probability of dropping a weight; the others are divided by 1 - dropout,
            and the sum that all are divided by keeps the dropped ones.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    key_padding: Tensor | None
    seed: Tensor | None
    plan: PreparedPart
    scale: float
    dropout: float = 0.0

    @property
    def along_batch(self) -> tuple[bool, ...]:
        """Whether the first axis of each field is the batch."""
        return *[True] * 4, *[False] * 4


class Incoming(NamedTuple):
    """What the backward pass takes beside the operands.

    Attributes:
        grad_out: The gradient of the output, (b, h, n, d).
        out: The output, (b, h, n, d).
        lse: The logarithm of each query's sum of exponentials, (b, h, n): to base 2
            from the kernels, natural otherwise.
    """

    grad_out: Tensor
    out: Tensor
    lse: Tensor
