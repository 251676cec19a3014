"""The operator: checks, and the way of each call.

On a CUDA device the Triton kernels run, elsewhere the chunked path: directly, by
`torch.func`, or as a custom op, so that `torch.compile` and fake tensors know it
(`library`). Forward-mode derivatives are those of the reference.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.ops.attention_library import run
from everyformer.ops.toeplitz_attention.checking import check
from everyformer.ops.toeplitz_attention.library import RULES, forward_op
from everyformer.ops.toeplitz_attention.operands import Operands


def toeplitz_attention(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h_k n_k d"],
    v: Float[Tensor, "b h_k n_k d"],
    bias: Float[Tensor, "h_or_1 r"] | None = None,
    gain: Float[Tensor, "h_or_1 r"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
    offset: int = 0,
    attn_mask: Tensor | None = None,
    sequences: Int[Tensor, " s_plus_1"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b h n_q d"]:
    """(softmax(scale q k^T + B) * C) v with Toeplitz B and C, in O(n) memory.

    B_ij = bias[i - j + n_k - 1], C_ij = gain[i - j + n_k - 1]. With C this is the attention
    of URPE (Luo et al. 2022, Equation 8); without C, that of T5, ALiBi and all others whose
    bias depends on i - j. Gradients go to q, k, v, bias and gain; second derivatives, and
    those of forward mode, take O(n^2) memory.

    Args:
        q: Queries.
        k: Keys. There may be fewer heads of them: query head i uses key head
            i // (h / h_k), and nothing is copied for it.
        v: Values.
        bias: Added to the scores: n_q + n_k - 1 numbers for each head, or for all heads.
        gain: Multiplied on the weights, of any sign.
        causal: Query i attends to keys j <= i + offset only.
        scale: Of the scores; 1/sqrt(d) by default.
        key_padding: True for keys that do not count. A query without keys gives 0.
        offset: The place of the first query, if that of the first key is 0: n_k - n_q for
            the last n_q of n_k tokens, whose first keys come from a cache. It moves
            `causal` alone; index i - j + n_k - 1 of the vectors is then i + offset - j
            tokens back.
        attn_mask: True for pairs that count, or numbers added to the scores, of which those
            up to -1e30 hide their pair as -inf does. Any shape that is broadcast to
            (b, h, n_q, n_k); it is never expanded, and has no gradient.
        sequences: Several sequences one after the other, b = 1: where each begins, and
            where the last one ends (`cu_seqlens`). A token attends to its own sequence.
        dropout: The share of weights that are dropped, after the gain; the others are
            divided by 1 - dropout.
        seed: Which ones: they depend on seed, batch, head, query and key alone, on every
            device. Drawn from torch's generator if None.

    Raises:
        InputError: If shapes, dtypes or devices do not fit; all reasons at once.

    Example:
        >>> import torch
        >>> q = k = v = torch.ones(1, 1, 2, 4)
        >>> toeplitz_attention(q, k, v, gain=torch.tensor([[0.0, 1.0, 1.0]]))[0, 0, :, 0]
        tensor([0.5000, 1.0000])
    """
    given = Operands(
        q, k, v, bias, gain, key_padding, attn_mask, sequences, seed,
        causal, 1.0 if scale is None else float(scale), offset, float(dropout),
    )  # fmt: skip
    check(given)
    if scale is None:
        given = given._replace(scale=q.shape[-1] ** -0.5)
    if attn_mask is not None:
        full = attn_mask.detach()[(None,) * (4 - attn_mask.dim())]
        given = given._replace(attn_mask=full)
    return run(RULES, forward_op, given)
