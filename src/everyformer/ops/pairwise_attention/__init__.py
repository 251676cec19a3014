"""Attention with any bias before and any gain after the softmax, for each pair."""

from everyformer.ops.pairwise_attention.operator import (
    pairwise_attention as pairwise_attention,
)
