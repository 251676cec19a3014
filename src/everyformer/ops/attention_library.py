"""Fused operators of attention as custom ops: for `torch.compile`, export, fake tensors."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import torch
from torch import Tensor

from everyformer.ops.attention_rules import DIFFERENTIABLE, Gradients, Rules
from everyformer.ops.dropping import drawn
from everyformer.ops.eager import (
    autocasted,
    is_plain,
    is_transformed,
    needs_plain_torch,
)


def custom_ops(
    name: str, rules: Rules, fakes: Callable[[Any], tuple[Tensor, ...]]
) -> tuple[Any, Any]:
    """The forward pass and the backward pass, each other's derivatives included.

    Args:
        name: They are everyformer::NAME_forward and everyformer::NAME_backward. Their
            arguments have the names and types of the operator's records.
        rules: The derivatives.
        fakes: From the operands to tensors like all results, without their numbers.
    """
    operands, incoming = rules.parts.operands, rules.parts.incoming
    results = len(incoming._fields) - 3  # beside grad_out and what is wanted

    def forward(*given: Any) -> Any:
        return rules.parts.forward(operands(*given))

    def backward(*given: Any) -> Any:
        return rules.gradients(*given)

    _sign(forward, results, operands)
    _sign(backward, DIFFERENTIABLE, operands, incoming)
    forward_op = torch.library.custom_op(
        f"everyformer::{name}_forward", forward, mutates_args=()
    )
    gradients_op = torch.library.custom_op(
        f"everyformer::{name}_backward", backward, mutates_args=()
    )

    @forward_op.register_fake
    def _forward_fake(*given: Any) -> tuple[Tensor, ...]:
        return fakes(operands(*given))

    @gradients_op.register_fake
    def _gradients_fake(*given: Any) -> tuple[Tensor, ...]:
        x, coming = rules.split(given)
        needed = (True, True, True, *coming[-2:])
        return tuple(
            x.q.new_empty(0) if y is None or not wanted else y.new_empty(y.shape)
            for y, wanted in zip(x[:DIFFERENTIABLE], needed, strict=True)
        )

    def pull_back(ctx: Any, grad_out: Tensor, *_: Tensor | None) -> Gradients:
        return rules.pull_back(ctx, grad_out, gradients_op)

    forward_op.register_autograd(pull_back, setup_context=rules.keep)
    gradients_op.register_autograd(
        rules.pull_back_gradients, setup_context=rules.keep_gradients
    )
    return forward_op, gradients_op


def run(rules: Rules, forward_op: Any, x: Any, *indexes: Tensor) -> Tensor:
    """The output of an operator: by its rules, as a custom op, or in plain torch.

    Args:
        rules: The derivatives.
        forward_op: What `custom_ops` made of them.
        x: The operands as they are given; autocast has its say, and a seed is drawn.
        indexes: Tensors among them that say, as q, k and v do, whether all is plain.
    """
    q, k, v = autocasted(*x[:3])
    dropout = float(x.dropout)
    seed = drawn(x.seed, dropout, q.device)
    x = x._replace(q=q, k=k, v=v, seed=seed, dropout=dropout)
    if needs_plain_torch(q, k, v):
        return rules.parts.attend(x, 0)
    if not is_plain(q, k, v, *indexes):
        return forward_op(*x)[0]
    if is_transformed():
        return rules.transformed.apply(*x)[0]
    return rules.direct.apply(*x)


def output_and_lse(x: Any) -> tuple[Tensor, Tensor]:
    """Tensors like the output and the logarithms of the sums of exponentials."""
    q = x[0]
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=wide)


def _sign(function: Any, results: int, *records: Any) -> None:
    """Say which arguments a function takes: the fields of the records, without defaults."""
    fields = {
        name: get_type_hints(record)[name] for record in records for name in record._fields
    }
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature(
        [inspect.Parameter(name, kind, annotation=hint) for name, hint in fields.items()],
        return_annotation=tuple[(Tensor,) * results],
    )
