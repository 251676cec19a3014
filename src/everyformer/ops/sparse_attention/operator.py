"""The operator: checks, and the way of each call.

On a CUDA device the Triton kernels run, elsewhere the groups of `grouped`: directly, by
`torch.func`, or as a custom op, so that `torch.compile` and fake tensors know it
(`library`). Forward-mode derivatives are those of `plain`.
"""

from typing import Any, Literal, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.errors import InputError, refuse
from everyformer.ops import refusals
from everyformer.ops.dropping import drawn
from everyformer.ops.eager import (
    autocasted,
    is_forward_mode,
    is_plain,
    is_transformed,
    needs_plain_torch,
)
from everyformer.ops.sparse_attention import plain
from everyformer.ops.sparse_attention.library import RULES, forward_op, planned
from everyformer.ops.sparse_attention.paths import natural
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.patterns import Part


@overload
def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    need_lse: Literal[False] = False,
) -> Tensor: ...
@overload
def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    need_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def sparse_attention(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    part: Part,
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
    need_lse: bool = False,
) -> Float[Tensor, "b h n d"] | tuple[Tensor, Float[Tensor, "b h n"]]:
    """Softmax attention in which token k attends to the tokens of A_k alone.

        o_k = sum_{j in A_k} softmax_{j in A_k}(scale q_k . k_j) v_j

    Time and memory follow the number of connections, forward and backward. With
    `torch.compile` it is one node of a graph (torch 2.13; with 2.11, which takes no pattern
    for a constant, only within the layer `SparseAttention`).

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        part: The sets A_k, for as many tokens as there are. What is prepared for it is
            kept as long as the object lives: use the same one again.
        scale: Of the scores; 1/sqrt(d) by default.
        key_padding: True for keys that do not count. A query without keys gives 0.
        dropout: The share of weights that are dropped; the others are divided by
            1 - dropout. The sum that all are divided by keeps the dropped ones.
        seed: Which ones: they depend on seed, batch, head, query and key alone, on every
            device and for every pattern. By default a random one.
        need_lse: Whether to return log sum_j exp(score_kj) too, -inf without keys. It has
            no gradient.

    Raises:
        InputError: If shapes, dtypes or devices do not fit; all reasons at once.

    Example:
        >>> from everyformer.patterns import Window
        >>> q = k = torch.zeros(1, 1, 3, 1)
        >>> v = torch.tensor([[[[1.0], [3.0], [9.0]]]])
        >>> sparse_attention(q, k, v, Window(3, 1, 0)).flatten()
        tensor([1., 2., 6.])
    """
    _check(q, k, v, part, key_padding, dropout, seed)
    given = _complete(q, k, v, key_padding, seed, _handle_of(part), scale, dropout)
    return _with_lse(*given) if need_lse else _output(*given)


def attend(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    handle: int,
    *,
    scale: float | None = None,
    key_padding: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b h n d"]:
    """The output, by the handle of a plan, which lives as long as its part.

    Nothing is checked.
    """
    return _output(*_complete(q, k, v, key_padding, seed, handle, scale, dropout))


def _complete(*given: Any) -> tuple[Any, ...]:
    """The arguments as the operator takes them: in one dtype, with seed and scale."""
    q, k, v, key_padding, seed, handle, scale, dropout = given
    q, k, v = autocasted(q, k, v)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    dropout = float(dropout)
    seed = drawn(seed, dropout, q.device)
    return q, k, v, key_padding, seed, handle, factor, dropout


def _output(*given: Any) -> Tensor:
    """The output alone."""
    if is_plain(*given[:3]) and not is_transformed() and not is_forward_mode():
        return RULES.direct.apply(*planned(*given))
    return _with_lse(*given)[0]


def _with_lse(*given: Any) -> tuple[Tensor, Tensor]:
    """The output, and the LSE to base e."""
    q, k, v = given[:3]
    if needs_plain_torch(q, k, v):
        return plain.forward(planned(*given))
    if is_plain(q, k, v):
        found = RULES.transformed.apply(*planned(*given))
    else:
        found = forward_op(*given)
    return found[0], natural(q, found[1])


@torch.compiler.assume_constant_result
def _handle_of(part: Part) -> int:
    return plan_of(part).handle


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    key_padding: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    if not isinstance(part, Part):
        msg = (
            f"part is a {type(part).__name__}; give the sets A_k of one layer, a Part: one "
            "of pattern.parts, or pattern.union().parts[0]"
        )
        raise InputError(msg)
    n = part.n
    same = q.shape == k.shape == v.shape and q.dtype == k.dtype == v.dtype
    fits = same and q.dim() == 4 and q.shape[2] == n and q.is_floating_point()
    alone = key_padding is None and seed is None and dropout == 0.0
    if fits and alone and q.device == k.device == v.device and q.numel():
        return
    wrong: list[str] = []
    if q.dim() != 4 or k.shape != q.shape or v.shape != q.shape:
        wrong.append(
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; "
            "they must all be (b, h, n, d)"
        )
    elif q.shape[2] != n:
        wrong.append(
            f"there are {q.shape[2]} tokens, but the pattern is for n={n}; make it for "
            f"{q.shape[2]}"
        )
    if q.numel() == 0:
        wrong.append(f"q {tuple(q.shape)} is empty")
    wrong += refusals.of_kinds(q, k, v)
    wrong += refusals.of_padding(key_padding, (*q.shape[:1], *q.shape[-2:-1]))
    wrong += [*refusals.of_dropout(dropout), *refusals.of_seed(seed)]
    wrong += refusals.of_devices(q, k, v, key_padding, seed)
    refuse("sparse_attention cannot run", wrong)
