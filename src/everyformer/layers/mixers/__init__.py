"""What mixes the tokens of a block instead of attention, one file each.

All have the signature of `RelativeAttention`: forward(x, *, key_padding_mask=None), with x
of shape (*batch, n, d), to the same shape, without the skip connection.
"""

from everyformer.layers.mixers.average import AverageAttention as AverageAttention
from everyformer.layers.mixers.bilinear import BilinearProjection as BilinearProjection
from everyformer.layers.mixers.dynamic import DynamicConvolution as DynamicConvolution
from everyformer.layers.mixers.light import LightConvolution as LightConvolution
from everyformer.layers.mixers.separable import SeparableConvolution as SeparableConvolution
