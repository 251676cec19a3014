"""What torch knows of the operator: derivatives, vmap and custom ops."""

import torch
from torch import Tensor

from everyformer.ops.attention_library import custom_ops, output_and_lse
from everyformer.ops.attention_rules import Parts, Rules
from everyformer.ops.toeplitz_attention import paths
from everyformer.ops.toeplitz_attention.heads import as_heads
from everyformer.ops.toeplitz_attention.operands import Incoming, Operands
from everyformer.ops.toeplitz_attention.reference import attend

PAD = 256
"""Zeros around the vectors; as in `kernels`, which cannot be imported without Triton."""


def _results(x: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors like output, LSE and table."""
    vectors = [y for y in (x.bias, x.gain) if y is not None]
    if not x.q.is_cuda or not vectors:
        return *output_and_lse(x), x.q.new_empty(0)
    heads, length = max(y.shape[0] for y in vectors), vectors[0].shape[1]
    table = x.q.new_empty(heads, length + 2 * PAD, 2, dtype=torch.float32)
    return *output_and_lse(x), table


RULES = Rules(
    Parts(Operands, Incoming, paths.forward, paths.gradients, attend, join=as_heads)
)
forward_op, gradients_op = custom_ops("toeplitz_attention", RULES, _results)
