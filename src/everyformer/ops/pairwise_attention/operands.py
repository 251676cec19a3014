"""What the operator is given, in the one order in which all its functions take it."""

from typing import NamedTuple

from torch import Tensor


class Operands(NamedTuple):
    """The arguments of the forward pass: tensors, then numbers.

    Attributes:
        q: Queries, (b, h, n_q, d).
        k: Keys, (b, h, n_k, d).
        v: Values, (b, h, n_k, d).
        bias: Added to the scores, (b or 1, h or 1, n_q or 1, n_k).
        gain: Multiplied on the weights, (b or 1, h or 1, n_q or 1, n_k).
        key_padding: True for keys that do not count, (b, n_k).
        seed: Of the weights that are dropped, one int64.
        causal: Whether query i attends to keys j <= i only.
        scale: Of the scores.
        dropout: The share of weights that are dropped, after the gain.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    gain: Tensor | None = None
    key_padding: Tensor | None = None
    seed: Tensor | None = None
    causal: bool = False
    scale: float = 1.0
    dropout: float = 0.0

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries and keys: what bias and gain may have at most."""
        b, h, n_q, _ = self.q.shape
        return b, h, n_q, self.k.shape[2]

    @property
    def along_batch(self) -> tuple[bool, ...]:
        """Whether the first axis of each field is the batch; sequences may share terms."""
        b = self.q.shape[0]
        return tuple([isinstance(x, Tensor) and x.shape[0] == b for x in self])


class Incoming(NamedTuple):
    """What the backward pass takes beside the operands.

    Attributes:
        grad_out: The gradient of the output, (b, h, n_q, d).
        out: The output, (b, h, n_q, d).
        lse: The logarithm of each query's sum of exponentials, (b, h, n_q): to base 2
            from the kernels, natural otherwise.
        needs_bias: Whether the gradient of the bias is wanted.
        needs_gain: Whether the gradient of the gain is wanted.
    """

    grad_out: Tensor
    out: Tensor
    lse: Tensor
    needs_bias: bool
    needs_gain: bool


Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""Of q, k, v, bias and gain; None where not needed."""
