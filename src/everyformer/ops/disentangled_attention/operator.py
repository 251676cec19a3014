"""The operator: checks, and the way of each call.

On a CUDA device the Triton kernels run, elsewhere the chunked path: directly, by
`torch.func`, or as a custom op, so that `torch.compile` and fake tensors know it
(`library`). Forward-mode derivatives are those of the reference.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.errors import refuse
from everyformer.ops import refusals
from everyformer.ops.attention_library import run
from everyformer.ops.captured import is_captured
from everyformer.ops.disentangled_attention.library import RULES, forward_op
from everyformer.ops.disentangled_attention.operands import Operands
from everyformer.ops.disentangled_attention.reference import default_scale
from everyformer.ops.eager import is_plain, is_transformed
from everyformer.ops.recalled import Recalled

CANNOT_RUN = "disentangled_attention cannot run"

MAX_HEAD_SIZE = 128
"""Of the Triton kernels."""

MAX_PLACES = 2**31
"""Entries of c2p or p2c of a head that the kernels can count."""

_NUMBERS = Recalled()
"""How often each index vector decreases, and its ends."""


def disentangled_attention(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h n_k d"],
    v: Float[Tensor, "b h n_k d"],
    c2p: Float[Tensor, "b h n_q buckets"] | None,
    p2c: Float[Tensor, "b h n_k buckets"] | None,
    index: Int[Tensor, " offsets"],
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b h n_q d"]:
    """softmax(scale (q k^T + C + P)) v with the terms of DeBERTa, never n_q x n_k.

    C_ij = c2p[i, index(i - j)], content to position, and P_ij = p2c[j, index(i - j)],
    position to content, where index(i - j) = index[i - j + n_k - 1]. With vectors r_b and
    s_b of the buckets, c2p = q r^T and p2c = k s^T are ordinary products, of which autograd
    takes the gradients; this operator gives those of q, k, v, c2p and p2c, with the same
    bits in each run. Memory is O(n (d + buckets)). Second derivatives, and those of forward
    mode, take O(n^2).

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        c2p: What each query says of each bucket of offsets, or None.
        p2c: What each key says of each bucket of offsets, or None.
        index: The bucket of each of the n_q + n_k - 1 offsets, the most negative one
            first. It must not decrease.
        scale: Of the sum; by default 1 / sqrt(d times the number of terms), as in DeBERTa.
        key_padding: True for keys that do not count. A query without keys gives 0.
        dropout: The share of weights that are dropped; the others are divided by
            1 - dropout.
        seed: Which ones: they depend on seed, batch, head, query and key alone, on every
            device. Drawn if it is None.

    Raises:
        InputError: If shapes, dtypes, devices or the index do not fit; all reasons at
            once. In compiled code the numbers of the index are not looked at.

    Example:
        >>> q = k = torch.zeros(1, 1, 2, 1)
        >>> v = torch.tensor([[[[1.0], [3.0]]]])
        >>> past = torch.tensor([-1e9, 0.0]).expand(1, 1, 2, 2)
        >>> disentangled_attention(q, k, v, past, None, torch.tensor([0, 1, 1])).flatten()
        tensor([1., 2.])
    """
    factor = 1.0 if scale is None else float(scale)
    given = Operands(q, k, v, c2p, p2c, index, key_padding, seed, factor, dropout)
    _check(given)
    if scale is None:
        given = given._replace(scale=default_scale(q.shape[-1], c2p, p2c))
    return run(RULES, forward_op, given, index)


def _check(x: Operands) -> None:
    q, k, v, c2p, p2c, index, key_padding, seed, _, dropout = x
    wrong: list[str] = []
    if q.dim() != 4 or k.dim() != 4 or v.shape != k.shape:
        wrong.append(
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; "
            "they must be (b, h, n_q, d), (b, h, n_k, d), (b, h, n_k, d)"
        )
    elif q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        wrong.append(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} differ in batch, heads or size"
        )
    refuse(CANNOT_RUN, wrong)
    for name, term, of in (("c2p", c2p, q), ("p2c", p2c, k)):
        if term is None:
            continue
        if term.dim() != 4 or term.shape[:3] != of.shape[:3] or term.shape[3] < 1:
            wrong.append(
                f"{name} has shape {tuple(term.shape)}; the first three sizes must "
                f"be {tuple(of.shape[:3])}, the last the number of buckets"
            )
        if not term.is_floating_point():
            wrong.append(f"{name} has dtype {term.dtype}; give floating-point numbers")
    terms = [x for x in (c2p, p2c) if x is not None]
    if not terms:
        wrong.append(
            "c2p and p2c are both None, so there is nothing relative; use "
            "torch.nn.functional.scaled_dot_product_attention"
        )
    elif terms[0].shape[-1:] != terms[-1].shape[-1:]:
        wrong.append(
            f"c2p has {terms[0].shape[-1]} buckets, p2c {terms[1].shape[-1]}; give both one"
        )
    offsets = q.shape[2] + k.shape[2] - 1
    if index.dim() != 1 or index.shape[0] != offsets:
        wrong.append(
            f"index has shape {tuple(index.shape)}; n_q + n_k - 1 offsets need ({offsets},)"
        )
    if index.dtype not in (torch.int64, torch.int32):
        wrong.append(f"index has dtype {index.dtype}; give int64 or int32")
    wrong += refusals.of_padding(key_padding, (k.shape[0], k.shape[2]))
    wrong += [*refusals.of_dropout(dropout), *refusals.of_seed(seed)]
    wrong += refusals.of_kinds(q, k, v)
    wrong += refusals.of_devices(q, k, v, *terms, index, key_padding, seed)
    if q.is_cuda and q.shape[-1] > MAX_HEAD_SIZE:
        wrong.append(f"heads of size {q.shape[-1]} exceed {MAX_HEAD_SIZE}; split them")
    wrong += refusals.of_pairs(q)
    if q.is_cuda and torch.float64 in {x.dtype for x in (q, *terms)}:
        wrong.append("float64 runs on the CPU only; move the tensors there")
    if q.is_cuda and any(x.shape[2:].numel() >= MAX_PLACES for x in terms):
        wrong.append(f"a head of c2p or p2c has {MAX_PLACES} entries or more; use fewer")
    if min(q.shape) == 0 or k.shape[2] == 0:
        wrong.append(f"q {tuple(q.shape)} or k {tuple(k.shape)} is empty")
    if not wrong:
        wrong += _disorder(index, terms[0].shape[-1])
    refuse(CANNOT_RUN, wrong)


def _disorder(index: Tensor, buckets: int) -> list[str]:
    """What is wrong with the numbers of the index, which are read once for each tensor.

    They are not read where that is impossible: compiled, transformed, or captured.
    """
    if not is_plain(index) or is_transformed() or is_captured(index):
        return []

    def numbers() -> list[int]:
        falls = (index[1:] < index[:-1]).sum()
        return torch.stack([falls, index[0], index[-1]]).tolist()

    falls, least, most = _NUMBERS.get(index, None, numbers)
    if falls:
        return [
            f"index decreases {falls} times along the offsets, so that a bucket may not be "
            "one range of them; sort the buckets by offset"
        ]
    if least < 0 or most >= buckets:
        return [f"index runs from {least} to {most}, but buckets from 0 to {buckets - 1}"]
    return []
