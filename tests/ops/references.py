"""The references, called as the operators are."""

from typing import Any

from torch import Tensor

from everyformer.ops.disentangled_attention import operands as disentangled
from everyformer.ops.disentangled_attention import reference as disentangled_reference
from everyformer.ops.pairwise_attention import operands as pairwise
from everyformer.ops.pairwise_attention import reference as pairwise_reference
from everyformer.ops.toeplitz_attention import operands as toeplitz
from everyformer.ops.toeplitz_attention import reference as toeplitz_reference

Term = Tensor | None


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def toeplitz_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Term = None, gain: Term = None,
    *, scale: float | None = None, **options: Any,
) -> Tensor:  # fmt: skip
    factor = _scale(q, scale)
    x = toeplitz.Operands(q, k, v, bias, gain, scale=factor, **options)
    return toeplitz_reference.attend(x)


def toeplitz_logits_reference(
    q: Tensor, k: Tensor, bias: Term = None, *, scale: float | None = None, **options: Any
) -> Tensor:
    """`torch.logsumexp` of it over the keys is the LSE that the fast paths return."""
    x = toeplitz.Operands(q, k, k, bias, scale=_scale(q, scale), **options)
    return toeplitz_reference.logits(x)


def pairwise_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Term = None, gain: Term = None,
    *, scale: float | None = None, **options: Any,
) -> Tensor:  # fmt: skip
    factor = _scale(q, scale)
    x = pairwise.Operands(q, k, v, bias, gain, scale=factor, **options)
    return pairwise_reference.attend(x)


def pairwise_logits_reference(
    q: Tensor, k: Tensor, bias: Term = None, *, scale: float | None = None, **options: Any
) -> Tensor:
    """As `toeplitz_logits_reference`."""
    x = pairwise.Operands(q, k, k, bias, scale=_scale(q, scale), **options)
    return pairwise_reference.logits(x)


def disentangled_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, c2p: Term, p2c: Term, index: Tensor,
    *, scale: float | None = None, key_padding: Term = None,
    dropout: float = 0.0, seed: Term = None,
) -> Tensor:  # fmt: skip
    default = disentangled_reference.default_scale(q.shape[-1], c2p, p2c)
    factor = default if scale is None else scale
    x = disentangled.Operands(q, k, v, c2p, p2c, index, key_padding, seed, factor, dropout)
    return disentangled_reference.attend(x)
