"""The operator: checks, and the way of each call.

On a CUDA device the Triton kernels run, elsewhere the chunked path: directly, by
`torch.func`, or as a custom op, so that `torch.compile` and fake tensors know it
(`library`). Forward-mode derivatives are those of the reference.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.errors import refuse
from everyformer.ops import refusals
from everyformer.ops.attention_library import run
from everyformer.ops.pairwise_attention.library import RULES, forward_op
from everyformer.ops.pairwise_attention.operands import Operands

CANNOT_RUN = "pairwise_attention cannot run"


def pairwise_attention(
    q: Float[Tensor, "b h n_q d"],
    k: Float[Tensor, "b h n_k d"],
    v: Float[Tensor, "b h n_k d"],
    bias: Float[Tensor, "#b #h #n_q n_k"] | None = None,
    gain: Float[Tensor, "#b #h #n_q n_k"] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n_k"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b h n_q d"]:
    """(softmax(scale q k^T + B) * C) v with any B and C, a number for each pair.

    For biases that are not a function of i - j: those of graphs (Graphormer), of windows of
    images (Swin), of pairs of residues (AlphaFold); and for URPE (Luo et al. 2022, Equation
    8) on top of them. Gradients go to q, k, v, B and C. Beside B, C and their gradients
    nothing has size n_q n_k: where a batch or all heads share one matrix, its gradient is
    summed inside the kernels, in a fixed order. Second derivatives, and those of forward
    mode, take O(b h n_q n_k) memory.

    If B and C depend on i - j alone, `toeplitz_attention` needs no matrices at all.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        bias: Added to the scores, (b or 1, h or 1, n_q or 1, n_k), with any strides. -inf
            hides a key from a query.
        gain: Multiplied on the weights, of any sign; the same shapes.
        causal: Query i attends to keys j <= i only.
        scale: Of the scores; 1/sqrt(d) by default.
        key_padding: True for keys that do not count. A query without keys gives 0.
        dropout: The share of weights that are dropped, after the gain; the others are
            divided by 1 - dropout.
        seed: Which ones: they depend on seed, batch, head, query and key alone, on every
            device. By default a random one.

    Raises:
        InputError: If shapes, dtypes or devices do not fit; all reasons at once.

    Example:
        >>> q = k = v = torch.ones(1, 1, 2, 4)
        >>> gain = torch.tensor([[[[1.0, 0.0], [1.0, 1.0]]]])
        >>> pairwise_attention(q, k, v, gain=gain)[0, 0, :, 0]
        tensor([0.5000, 1.0000])
    """
    given = Operands(
        q, k, v, bias, gain, key_padding, seed,
        causal, 1.0 if scale is None else float(scale), dropout,
    )  # fmt: skip
    _check(given)
    if scale is None:
        given = given._replace(scale=q.shape[-1] ** -0.5)
    return run(RULES, forward_op, given)


def _check(x: Operands) -> None:
    q, k, v, _, _, key_padding, seed, _, scale, dropout = x
    named = dict(zip(x._fields[:7], x[:7], strict=True))
    wrong = [
        f"{name} is a {type(y).__name__}; give a tensor"
        for name, y in named.items()
        if not isinstance(y, Tensor) and (y is not None or name in "qkv")
    ]
    refuse(CANNOT_RUN, wrong)
    if q.dim() != 4 or k.dim() != 4 or v.shape != k.shape:
        wrong.append(
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; "
            "they must be (b, h, n_q, d), (b, h, n_k, d), (b, h, n_k, d)"
        )
    elif (*q.shape[:2], q.shape[3]) != (*k.shape[:2], k.shape[3]):
        wrong.append(
            f"q has batch, heads, size {(*q.shape[:2], q.shape[3])}, k has "
            f"{(*k.shape[:2], k.shape[3])}; give both the same"
        )
    refuse(CANNOT_RUN, wrong)
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if 0 in (*q.shape, k.shape[2]):
        wrong.append(f"q {tuple(q.shape)} or k {tuple(k.shape)} is empty; leave it out")
    for name in ("bias", "gain"):
        wrong += _wrong_pairs(name, named[name], sizes)
    wrong += refusals.of_padding(key_padding, (sizes[0], sizes[3]))
    if len({q.dtype, k.dtype, v.dtype}) > 1:
        wrong.append(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; give one kind")
    if not q.is_floating_point():
        wrong.append(f"q has dtype {q.dtype}; give floating-point numbers")
    devices = {str(y.device) for y in x[:7] if isinstance(y, Tensor)}
    if len(devices) > 1:
        wrong.append(f"tensors lie on {sorted(devices)}; use one device")
    wrong += [*refusals.of_seed(seed), *refusals.of_dropout(dropout)]
    if not math.isfinite(scale):
        wrong.append(f"scale={scale} makes every score infinite or NaN; give a number")
    refuse(CANNOT_RUN, wrong)


def _wrong_pairs(
    name: str, pairs: Tensor | None, sizes: tuple[int, int, int, int]
) -> list[str]:
    """What is wrong with a bias or a gain."""
    if pairs is None:
        return []
    wrong: list[str] = []
    shape = tuple(pairs.shape)
    if len(shape) != 4:
        hint = ", for example with [None]" if shape == sizes[1:] else ""
        wrong.append(
            f"{name} has shape {shape}; give 4 axes, those of {sizes}, or 1 for the batch, "
            f"the heads or the queries to share it{hint}"
        )
    else:
        axes = zip(("batch", "heads", "queries", "keys"), shape, sizes, strict=True)
        wrong += [
            f"{name} has shape {shape}, so {has} for the {axis} of which there are {size}; "
            f"give {size}" + ("" if axis == "keys" else " or 1")
            for axis, has, size in axes
            if has != size and (has != 1 or axis == "keys")
        ]
    if not pairs.is_floating_point():
        mask = ", for a mask 0 and -inf" if pairs.dtype == torch.bool else ""
        wrong.append(f"{name} has dtype {pairs.dtype}; give floating-point numbers{mask}")
    return wrong
