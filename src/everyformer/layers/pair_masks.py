"""Masks on pairs of a query and a key, and the queries whose weights are asked for."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from everyformer.errors import InputError, refuse
from everyformer.ops.toeplitz_attention.operands import HIDES


def pair_mask(
    mask: Tensor,
    batch: Sequence[int],
    heads: int,
    n_q: int,
    n_k: int,
    device: torch.device,
) -> Tensor:
    """`attn_mask` as (b or 1, h or 1, n_q or 1, n_k).

    Args:
        mask: True where a pair counts, or numbers that are added to the logits; of a shape
            that broadcasts to (*batch, heads, n_q, n_k).
        batch: Of the tokens.
        heads: Number of heads.
        n_q: Number of queries.
        n_k: Number of keys.
        device: Of the tokens.

    Raises:
        InputError: If shape, dtype or device do not fit, or gradients are asked for.
    """
    if not isinstance(mask, Tensor):
        msg = f"attn_mask is of type {type(mask).__name__}; give a tensor."
        raise InputError(msg)
    wanted = (*batch, heads, n_q, n_k)
    wrong: list[str] = []
    if mask.dtype != torch.bool and not mask.is_floating_point():
        wrong.append(
            f"it has dtype {mask.dtype}; give bool, True where a pair counts, or numbers "
            "that are added"
        )
    if mask.device != device:
        wrong.append(f"it lies on {mask.device}, the tokens on {device}; use one")
    if mask.requires_grad:
        wrong.append(
            "it requires gradients, and gets none; give an encoding, or use "
            "everyformer.ops.pairwise_attention"
        )
    fits = 0 < mask.dim() <= len(wanted) and all(
        size in (1, most)
        for size, most in zip(reversed(mask.shape), reversed(wanted), strict=False)
    )
    if not fits:
        wrong.append(
            f"it has shape {tuple(mask.shape)}, which does not broadcast to (*batch, "
            f"heads, queries, keys) = {wanted}"
        )
    refuse("attn_mask cannot be used", wrong)
    full = mask.reshape((1,) * (len(wanted) - mask.dim()) + tuple(mask.shape))
    leading = full.shape[: len(batch)]
    if all(size == 1 for size in leading):
        full = full.reshape(1, *full.shape[len(batch) :])
    else:
        full = full.expand(*batch, *full.shape[len(batch) :]).flatten(0, len(batch) - 1)
    return full.expand(*full.shape[:-1], n_k)


def masked_logits(
    logits: Float[Tensor, "b h n_q n_k"],
    hidden: Bool[Tensor, "..."] | None,
    mask: Tensor | None,
) -> tuple[Float[Tensor, "b h n_q n_k"], Bool[Tensor, "..."] | None]:
    """Logits with an additive mask, and the pairs that are hidden.

    Numbers up to `HIDES` hide their pair, as in `toeplitz_attention`.
    """
    if mask is None:
        return logits, hidden
    if mask.dtype == torch.bool:
        outside = ~mask
    else:
        outside = mask <= HIDES
        logits = logits + mask.masked_fill(outside, 0.0).to(logits.dtype)
    return logits, outside if hidden is None else hidden | outside


def chosen_rows(need_weights: bool | slice | Tensor, n_q: int) -> list[int] | None:
    """The queries whose weights are asked for; None for all or none of them.

    Raises:
        InputError: If they are not queries.
    """
    if isinstance(need_weights, bool):
        return None
    if isinstance(need_weights, slice):
        return list(range(*need_weights.indices(n_q)))
    whole = isinstance(need_weights, Tensor) and (
        need_weights.dim() == 1
        and need_weights.dtype != torch.bool
        and not need_weights.is_floating_point()
        and not need_weights.is_complex()
    )
    if not whole:
        msg = (
            f"need_weights={need_weights!r} does not name queries. Give True for all, a "
            "slice, or whole numbers in a tensor of one dimension."
        )
        raise InputError(msg)
    rows = [int(row) for row in need_weights.tolist()]
    wrong = [row for row in rows if not -n_q <= row < n_q]
    if wrong:
        msg = (
            f"need_weights asks for query {wrong[0]}, but there are {n_q}: give numbers "
            f"from {-n_q} to {n_q - 1}."
        )
        raise InputError(msg)
    return [row % n_q for row in rows]


def runs(rows: Sequence[int]) -> list[slice]:
    """The rows, those that follow each other together.

    Example:
        >>> runs([3, 4, 5, 1, 9])
        [slice(3, 6, None), slice(1, 2, None), slice(9, 10, None)]
    """
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(rows)) if b != a + 1), len(rows)]
    return [slice(rows[a], rows[b - 1] + 1) for a, b in pairwise(cuts) if b > a]
