"""Convolution of tokens with filters of their own, each shared by a group of dimensions."""

from everyformer.ops.dynamic_convolution.operator import (
    dynamic_convolution as dynamic_convolution,
)
