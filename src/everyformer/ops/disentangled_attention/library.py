"""What torch knows of the operator: derivatives, vmap and custom ops."""

from everyformer.ops.attention_library import custom_ops, output_and_lse
from everyformer.ops.attention_rules import Parts, Rules
from everyformer.ops.disentangled_attention import paths
from everyformer.ops.disentangled_attention.operands import Incoming, Operands
from everyformer.ops.disentangled_attention.reference import attend

RULES = Rules(Parts(Operands, Incoming, paths.forward, paths.gradients, attend))
forward_op, gradients_op = custom_ops("disentangled_attention", RULES, output_and_lse)
