"""Attention with a Toeplitz bias before and a Toeplitz gain after the softmax."""

from everyformer.ops.toeplitz_attention.operator import (
    toeplitz_attention as toeplitz_attention,
)
