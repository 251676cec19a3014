"""Which layer is to take the sum of a constructed network, where attention need not."""

from typing import Literal

from everyformer.files.description import StageKind

MixerName = Literal["average", "bilinear", "separable"]
"""Average attention, a bi-linear projection, a separable convolution."""

MIXER_KINDS: dict[MixerName, StageKind] = {
    "average": "average attention",
    "bilinear": "bi-linear projection",
    "separable": "separable convolution",
}
"""The kind of a stage whose attention is to be such a layer: a hint, like all kinds."""
