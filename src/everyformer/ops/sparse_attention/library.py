"""The operator as a custom op, for `torch.compile`, export and fake tensors.

`derivatives` says what autograd knows of it.
"""

import torch
from torch import Tensor

from everyformer.ops.sparse_attention import paths, plain
from everyformer.ops.sparse_attention.plans import plan_with


@torch.library.custom_op("everyformer::sparse_attention", mutates_args=())
def forward_op(
    q: Tensor, k: Tensor, v: Tensor, key_padding: Tensor | None, handle: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and LSE."""
    return paths.forward(q, k, v, key_padding, plan_with(handle), scale)


@forward_op.register_fake
def _forward_fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=statistics)


@torch.library.custom_op("everyformer::sparse_attention_backward", mutates_args=())
def gradients_op(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding: Tensor | None,
    out: Tensor,
    lse: Tensor,
    handle: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    saved = (q, k, v, key_padding, out, lse)
    return paths.apart(paths.gradients(grad_out, saved, plan_with(handle), scale))


@gradients_op.register_fake
def _gradients_fake(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@torch.library.custom_op("everyformer::sparse_attention_hidden_pairs", mutates_args=())
def mask_op(handle: int, n: int, device: torch.device) -> Tensor:
    """True where a query does not attend to a key, (n, n)."""
    return plain.hidden_pairs(plan_with(handle).groups, n).to(device)


@mask_op.register_fake
def _mask_fake(handle: int, n: int, device: torch.device) -> Tensor:
    return torch.empty(n, n, dtype=torch.bool, device=device)
