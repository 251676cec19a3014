"""One block of an encoder: a mixer and a feed-forward layer, with skips and norms."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.layers.attention import RelativeAttention
from everyformer.layers.encodings import Encoding
from everyformer.layers.encodings.encoding import TABLE_STD
from everyformer.layers.gains import Gain
from everyformer.layers.mixers import (
    AverageAttention,
    BilinearProjection,
    DynamicConvolution,
    LightConvolution,
    SeparableConvolution,
)
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.layers.torch_options import TorchOptions


def mixer_by_name(
    name: str,
    config: EncoderConfig,
    encoding: Encoding | str | None,
    gain: Gain | bool,
    options: TorchOptions,
) -> nn.Module:
    """The mixer of that name for the sizes of a config; encoding and gain for attention."""
    if name == "attention":
        return RelativeAttention(
            config.dim,
            config.heads,
            encoding=encoding,
            gain=gain,
            max_len=config.max_len,
            dropout=config.attention_dropout,
            **options,
        )
    if name == "average":
        return AverageAttention(config.dim, **options)
    if name == "bilinear":
        return BilinearProjection(
            config.dim, config.max_len, shorter=config.shorter, **options
        )
    if name == "separable":
        return SeparableConvolution(config.dim, config.filter_length, **options)
    if name == "dynamic":
        return DynamicConvolution(
            config.dim,
            filters=config.filters,
            filter_length=config.filter_length,
            **options,
        )
    return LightConvolution(
        config.dim,
        filters=config.filters,
        filter_length=config.filter_length,
        normalised=config.normalised_filters,
        **options,
    )


def activation(name: str) -> nn.Module:
    """The activation of that name."""
    return nn.ReLU() if name == "relu" else nn.GELU("none" if name == "gelu" else "tanh")


def begin_anew(model: nn.Module) -> None:
    """Weights N(0, 0.02^2), biases 0, norms and gains 1."""
    for part in model.modules():
        if isinstance(part, nn.LayerNorm | Gain):
            part.reset_parameters()
            continue
        for name, parameter in part.named_parameters(recurse=False):
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=TABLE_STD)


class EncoderBlock(nn.Module):
    """Mixer, then W_2 activation(W_1 x + b_1) + b_2, each added to its input.

    norm="post": x <- LN(x + f(x)); "pre": x <- x + f(LN(x)); "none": x <- x + f(x).
    """

    def __init__(
        self, config: EncoderConfig, mixer: nn.Module, options: TorchOptions
    ) -> None:
        """A block of the sizes of the config around a mixer."""
        super().__init__()
        self.norm = config.norm
        self.mixer = mixer
        self.feed_forward = nn.Sequential(
            nn.Linear(config.dim, config.ffn, **options),
            activation(config.activation),
            nn.Linear(config.ffn, config.dim, **options),
        )
        self.norms = nn.ModuleList(
            nn.Identity() if config.norm == "none" else nn.LayerNorm(config.dim, **options)
            for _ in range(2)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        key_padding_mask: Bool[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "*batch n d"]:
        """Mix, then transform each token."""
        mixer_norm, feed_forward_norm = self.norms
        if self.norm == "pre":
            mixed = self.mixer(mixer_norm(x), key_padding_mask=key_padding_mask)
            x = x + self.dropout(mixed)
            return x + self.dropout(self.feed_forward(feed_forward_norm(x)))
        mixed = self.mixer(x, key_padding_mask=key_padding_mask)
        x = mixer_norm(x + self.dropout(mixed))
        return feed_forward_norm(x + self.dropout(self.feed_forward(x)))
