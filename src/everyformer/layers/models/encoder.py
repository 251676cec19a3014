"""An encoder: embeddings, blocks with any mixer, and a head for every token."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.encodings import Encoding, encoding_by_name
from everyformer.layers.encodings.encoding import table
from everyformer.layers.gains import Gain, ToeplitzGain
from everyformer.layers.models.encoder_block import (
    EncoderBlock,
    activation,
    begin_anew,
    mixer_by_name,
)
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.layers.torch_options import TorchOptions


class Encoder(nn.Module):
    """A BERT-style encoder for masked tokens or for a class of every token.

        states = blocks(LN(E[token] + P[position] + S[segment]))
        logits = W LN(activation(D states + d)) + b

    W is E itself for a tied head. Weights start as N(0, 0.02^2), biases at 0, norms and
    gains at 1. `Encoder(config, device="meta")` costs no memory.

    Args:
        config: All settings.
        mixers: Modules to use in the blocks instead of those that config.mixers names,
            such as `SparseAttention`; each takes (x, *, key_padding_mask=None).
        device: As in torch.
        dtype: As in torch.

    Raises:
        InputError: If there is not one mixer for each block.

    Example:
        >>> config = EncoderConfig(50, 16, dim=8, layers=2, heads=2, ffn=16,
        ...     mixers=("separable", "attention"), encoding="t5+urpe")
        >>> encoder = Encoder(config)
        >>> encoder(torch.zeros(3, 16, dtype=torch.long)).shape
        torch.Size([3, 16, 50])
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        mixers: Sequence[nn.Module] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        options: TorchOptions = {"device": device, "dtype": dtype}
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.dim, **options)
        self.positions = (
            table(config.max_len, config.dim, **options)
            if config.positions.absolute
            else None
        )
        self.segments = (
            nn.Embedding(config.segments, config.dim, **options)
            if config.segments
            else None
        )
        self.embedding_norm = (
            nn.LayerNorm(config.dim, **options) if config.embedding_norm else nn.Identity()
        )
        self.dropout = nn.Dropout(config.dropout)
        mixers = _named_mixers(config, options) if mixers is None else mixers
        if len(mixers) != config.layers:
            msg = (
                f"mixers has {len(mixers)} modules for layers={config.layers} blocks. Give "
                "one for each block."
            )
            raise InputError(msg)
        self.blocks = nn.ModuleList(EncoderBlock(config, m, options) for m in mixers)
        self.last_norm = (
            nn.LayerNorm(config.dim, **options) if config.norm == "pre" else nn.Identity()
        )
        self.pooler = (
            nn.Linear(config.dim, config.dim, **options) if config.pooler else None
        )
        self.head = None if config.head == "none" else TokenHead(config, options)
        self.reset_parameters()
        if self.head is not None and config.head == "tied":
            self.head.projection.weight = self.tokens.weight

    def reset_parameters(self) -> None:
        """Weights N(0, 0.02^2), biases 0, norms and gains 1."""
        begin_anew(self)

    def forward(
        self,
        tokens: Int[Tensor, "*batch n"],
        *,
        key_padding_mask: Bool[Tensor, "*batch n"] | None = None,
        segments: Int[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "*batch n outputs"]:
        """The logits of every token; without a head, its state.

        Args:
            tokens: Token ids.
            key_padding_mask: True for tokens that nobody sees.
            segments: Segment ids; all 0 by default.

        Raises:
            InputError: If the sequence is too long, or segments are given to an encoder
                without.
        """
        states = self.states(tokens, key_padding_mask=key_padding_mask, segments=segments)
        return states if self.head is None else self.head(states)

    def states(
        self,
        tokens: Int[Tensor, "*batch n"],
        *,
        key_padding_mask: Bool[Tensor, "*batch n"] | None = None,
        segments: Int[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "*batch n d"]:
        """The states after the last block.

        With `encoder.head(states[chosen])` only chosen tokens pay for their logits.
        """
        x = self.embedded(tokens, segments)
        for block in self.blocks:
            x = block(x, key_padding_mask=key_padding_mask)
        return self.last_norm(x)

    def embedded(
        self,
        tokens: Int[Tensor, "*batch n"],
        segments: Int[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "*batch n d"]:
        """What enters the first block."""
        x = self.tokens(tokens)
        if self.positions is not None:
            if tokens.shape[-1] > self.config.max_len:
                msg = (
                    f"The sequence has {tokens.shape[-1]} tokens, but there are positions "
                    f"for max_len={self.config.max_len}. Cut it, or make a larger encoder."
                )
                raise InputError(msg)
            x = x + self.positions[: tokens.shape[-1]]
        if self.segments is not None:
            x = x + self.segments(
                torch.zeros_like(tokens) if segments is None else segments
            )
        elif segments is not None:
            msg = (
                "segments were given, but this encoder has no segment embedding. Leave "
                "them out, or set segments=2 in its config."
            )
            raise InputError(msg)
        return self.dropout(self.embedding_norm(x))

    def pooled(self, states: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch d"]:
        """tanh of a dense layer on the first token.

        Raises:
            InputError: If the encoder was made without.
        """
        if self.pooler is None:
            msg = "This encoder has no pooler. Set pooler=True in its config."
            raise InputError(msg)
        return torch.tanh(self.pooler(states[..., 0, :]))


class TokenHead(nn.Module):
    """W LN(activation(D x + d)) + b for every token, as BERT and RoBERTa have it."""

    def __init__(self, config: EncoderConfig, options: TorchOptions) -> None:
        """A head with as many outputs as the config says."""
        super().__init__()
        self.dense = nn.Linear(config.dim, config.dim, **options)
        self.activation = activation(config.activation)
        self.norm = nn.LayerNorm(config.dim, **options)
        self.projection = nn.Linear(config.dim, config.outputs, **options)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch outputs"]:
        """The logits."""
        return self.projection(self.norm(self.activation(self.dense(x))))


def _named_mixers(config: EncoderConfig, options: TorchOptions) -> list[nn.Module]:
    """The mixers of the config; attention shares its tables, if it says so."""
    positions = config.positions
    encoding: Encoding | str | None = positions.relative
    gain: Gain | bool = positions.gain
    if config.share_encoding and "attention" in config.mixer_names:
        encoding = encoding_by_name(
            positions.relative,
            embed_dim=config.dim,
            num_heads=config.heads,
            max_len=config.max_len,
            **options,
        )
        if positions.gain:
            gain = ToeplitzGain(config.heads, config.max_len, **options)
    return [
        mixer_by_name(name, config, encoding, gain, options) for name in config.mixer_names
    ]
