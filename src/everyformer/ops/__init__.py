"""Functions on tensors, fast: one folder for each, with its derivation."""

from everyformer.ops.disentangled_attention import (
    disentangled_attention as disentangled_attention,
)
from everyformer.ops.dynamic_convolution import (
    dynamic_convolution as dynamic_convolution,
)
from everyformer.ops.light_convolution import light_convolution as light_convolution
from everyformer.ops.pairwise_attention import pairwise_attention as pairwise_attention
from everyformer.ops.sparse_attention import sparse_attention as sparse_attention
from everyformer.ops.toeplitz_attention import toeplitz_attention as toeplitz_attention
