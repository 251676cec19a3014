"""Attention as a model of transformers asks for it: by the operator, or in plain torch.

    o_i = sum_j c_{i-j} softmax_j(scale q_i k_j + b_{i-j} + a_j + m_ij) v_j

b and c are vectors by offset, a is a number for each key, m a mask. Plain torch runs where
the weights themselves are wanted, and for what the operator does not take.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.errors import refuse
from everyformer.layers.weights import (
    attention_weights,
    for_all_heads,
    hidden_pairs,
    operator_takes,
    scores,
)
from everyformer.ops import toeplitz_attention
from everyformer.ops.toeplitz_attention.packing import own_sequence
from everyformer.ops.toeplitz_attention.reference import toeplitz


@dataclass(frozen=True)
class Call:
    """What stands beside queries, keys and values.

    Attributes:
        scale: Of the scores.
        causal: Whether query i, one of the last n_q of n_k tokens, sees keys up to itself.
        bias: Added by offset, (h or 1, n_q + n_k - 1).
        gain: Multiplied on the weights by offset, (h or 1, n_q + n_k - 1).
        seen: False for keys that do not count, (b, n_k).
        key_bias: Added for each key, (b or 1, h, n_k).
        mask: (b or 1, h or 1, n_q or 1, n_k): False hides a pair, or numbers to add.
        sequences: Where sequences that are packed in one row begin, and the last one's end.
        dropout: Probability with which a weight is dropped.
        weights: Whether the weights are wanted.
    """

    scale: float
    causal: bool = False
    bias: Tensor | None = None
    gain: Tensor | None = None
    seen: Tensor | None = None
    key_bias: Tensor | None = None
    mask: Tensor | None = None
    sequences: Tensor | None = None
    dropout: float = 0.0
    weights: bool = False


def attend(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h_k n_k d"],
    v: Float[Tensor, "b h_k n_k d"],
    call: Call,
) -> tuple[Float[Tensor, "b h n_q d"], Tensor | None]:
    """The outputs, and the weights if they are wanted or were made anyway."""
    _check(q, k, v, call)
    added = [x for x in (call.mask, _as_mask(call.key_bias)) if x is not None]
    learnt = any(x.requires_grad for x in added)
    if call.weights or len(added) > 1 or learnt or not operator_takes(q):
        return _plainly(q, k, v, call)
    n_q, n_k = q.shape[-2], k.shape[-2]
    out = toeplitz_attention(
        q, k, v, call.bias, call.gain, scale=call.scale, dropout=call.dropout,
        causal=call.causal and n_q > 1,  # a single query is the last token: it sees all
        offset=n_k - n_q if call.causal else 0,
        key_padding=None if call.seen is None else ~call.seen,
        attn_mask=added[0] if added else None,
        sequences=call.sequences,
    )  # fmt: skip
    return out, None


def _as_mask(key_bias: Tensor | None) -> Tensor | None:
    return None if key_bias is None else key_bias[:, :, None, :]


def _plainly(q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    k, v = (for_all_heads(x, q.shape[1]) for x in (k, v))
    n_q, n_k = q.shape[-2], k.shape[-2]
    logits = scores(q, k, call.scale)
    if call.bias is not None:
        logits = logits + toeplitz(call.bias.to(logits.dtype), n_q, n_k)
    if call.key_bias is not None:
        logits = logits + call.key_bias[:, :, None, :]
    hidden = hidden_pairs(
        n_q, n_k, causal=call.causal, device=q.device,
        key_padding=None if call.seen is None else ~call.seen,
    )  # fmt: skip
    if call.sequences is not None:
        other = ~own_sequence(call.sequences, n_k)[None, None]
        hidden = other if hidden is None else hidden | other
    if call.mask is not None and call.mask.dtype == torch.bool:
        hidden = ~call.mask if hidden is None else hidden | ~call.mask
    elif call.mask is not None:
        without = call.mask == -torch.inf
        logits = logits + call.mask.masked_fill(without, 0.0)
        hidden = without if hidden is None else hidden | without
    if hidden is not None:
        hidden = hidden.expand(*hidden.shape[:2], n_q, n_k)
    gain = None if call.gain is None else toeplitz(call.gain, n_q, n_k)
    weights = attention_weights(logits, hidden, gain, dtype=v.dtype, dropout=call.dropout)
    return weights @ v, weights


def _check(q: Tensor, k: Tensor, v: Tensor, call: Call) -> None:
    """Refuse masks that do not fit, and tensors on several devices; all at once."""
    wrong: list[str] = []
    (b, h, n_q, _), n_k = q.shape, k.shape[2]
    if call.seen is not None and (
        call.seen.dtype != torch.bool or tuple(call.seen.shape) != (b, n_k)
    ):
        wrong.append(
            f"the mask of keys has shape {tuple(call.seen.shape)} and dtype "
            f"{call.seen.dtype}; {b} sequences of {n_k} keys need bool {(b, n_k)}"
        )
    if call.mask is not None:
        sizes = zip(call.mask.shape, (b, h, n_q, n_k), strict=False)
        fits = call.mask.dim() == 4 and all(m in (1, size) for m, size in sizes)
        known = call.mask.dtype == torch.bool or call.mask.is_floating_point()
        if not fits or not known:
            wrong.append(
                f"attention_mask has shape {tuple(call.mask.shape)} and dtype "
                f"{call.mask.dtype}; give bool or floating-point numbers of a shape that "
                f"{(b, h, n_q, n_k)} broadcasts, or bool ({b}, {n_k})"
            )
    given = [
        q, k, v, call.bias, call.gain, call.seen, call.key_bias, call.mask, call.sequences
    ]  # fmt: skip
    devices = {str(x.device) for x in given if x is not None}
    if len(devices) > 1:
        wrong.append(f"tensors lie on {', '.join(sorted(devices))}; use one device")
    refuse("everyformer's attention cannot run", wrong)
