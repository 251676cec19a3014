"""Softmax attention over a sparse pattern, at a cost that follows its connections."""

from everyformer.ops.sparse_attention.operator import sparse_attention as sparse_attention
