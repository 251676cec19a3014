"""Depth-wise convolution of tokens, each filter shared by a group of dimensions."""

from everyformer.ops.light_convolution.operator import (
    light_convolution as light_convolution,
)
