"""An encoder-decoder: reads a source, and says a target token by token."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.models.decoder import (
    AddedAttention,
    AddedFeedForward,
    Attention,
    BlockCache,
    Decoder,
    DecoderBlock,
)
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.layers.offsets import check_positive
from everyformer.layers.sparse_attention import Configuration, SparseAttention
from everyformer.layers.torch_options import TorchOptions
from everyformer.patterns import Pattern


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig:
    """Sizes; the norm is in front of each part, positions are learnt, embeddings tied.

    Attributes:
        vocab_size: Number of token ids, of both languages together.
        max_len: Longest source, and longest target.
        dim: Width of a token.
        encoder_layers: Blocks of the encoder.
        decoder_layers: Blocks of the decoder.
        heads: Of attention; dim must be a multiple.
        ffn: Hidden units of a feed-forward layer.
        dropout: On embeddings and on what each part adds.
        attention_dropout: On the weights of attention.
        activation: Of the feed-forward layers.
    """

    vocab_size: int
    max_len: int = 256
    dim: int = 256
    encoder_layers: int = 6
    decoder_layers: int = 6
    heads: int = 8
    ffn: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: str = "relu"

    def __post_init__(self) -> None:
        """Refuse what cannot be built.

        Raises:
            InputError: With the reasons.
        """
        check_positive(decoder_layers=self.decoder_layers)
        _ = self.encoder

    @property
    def encoder(self) -> EncoderConfig:
        """The encoder of these sizes."""
        return EncoderConfig(
            self.vocab_size,
            self.max_len,
            dim=self.dim,
            layers=self.encoder_layers,
            heads=self.heads,
            ffn=self.ffn,
            norm="pre",
            embedding_norm=False,
            head="none",
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation=self.activation,
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


class EncoderDecoderModel(nn.Module):
    """Logits of the next target token, for every target token.

        states = decoder(E[target] + P, encoder(source)),    logits = states E^T

    One embedding E serves the source, the target and the output. Weights start as
    N(0, 0.02^2), biases at 0, norms at 1.

    Args:
        config: All sizes.
        encoder_mixers: Self-attention of each block of the encoder; dense by default.
        decoder_mixers: The same of the decoder, causal; dense by default.
        cross_mixers: Attention to the source of each block; dense by default. Over a
            pattern, token i of the target hears the set of token i of the source, so that
            a target may not be longer than its padded source.
        device: As in torch.
        dtype: As in torch.

    Raises:
        InputError: If there is not one mixer for each block, or a token could hear a later
            one.

    Example:
        >>> config = EncoderDecoderConfig(vocab_size=50, max_len=16, dim=8,
        ...     encoder_layers=1, decoder_layers=1, heads=2, ffn=16)
        >>> model = EncoderDecoderModel(config)
        >>> source, target = torch.zeros(3, 9, dtype=int), torch.zeros(3, 5, dtype=int)
        >>> model(source, target).shape
        torch.Size([3, 5, 50])
    """

    def __init__(
        self,
        config: EncoderDecoderConfig,
        *,
        encoder_mixers: Sequence[nn.Module] | None = None,
        decoder_mixers: Sequence[Attention] | None = None,
        cross_mixers: Sequence[Attention] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        options: TorchOptions = {"device": device, "dtype": dtype}
        self.config = config
        self.encoder = Encoder(config.encoder, mixers=encoder_mixers, **options)
        own = _dense(config, True, options) if decoder_mixers is None else decoder_mixers
        source = _dense(config, False, options) if cross_mixers is None else cross_mixers
        for name, given in (("decoder_mixers", own), ("cross_mixers", source)):
            if len(given) != config.decoder_layers:
                msg = (
                    f"{name} has {len(given)} modules for decoder_layers="
                    f"{config.decoder_layers} blocks. Give one for each block."
                )
                raise InputError(msg)
        d, p = config.dim, config.dropout
        blocks = [
            DecoderBlock(
                AddedAttention(d, one, p, options),
                AddedAttention(d, other, p, options),
                AddedFeedForward(d, config.ffn, config.activation, p, options),
            )
            for one, other in zip(own, source, strict=True)
        ]
        self.decoder = Decoder(self.encoder.tokens, config.max_len, blocks, p, options)
        self.head = nn.Linear(d, config.vocab_size, bias=False, **options)
        self.head.weight = self.encoder.tokens.weight

    def reset_parameters(self) -> None:
        """Begin anew; from one seed all networks of these sizes get the same weights."""
        self.encoder.reset_parameters()
        self.decoder.reset_parameters()

    @property
    def blocks(self) -> nn.ModuleList:
        """What `torch.compile` compiles, once for networks with any patterns.

        Whole blocks; of those with `SparseAttention`, whose code has a pattern in it and
        would be compiled once for each, the feed-forward layers alone.
        """
        found: list[nn.Module] = []
        for block in (*self.encoder.blocks, *self.decoder.blocks):
            whole = not any(isinstance(m, SparseAttention) for m in block.modules())
            found.append(block if whole else block.get_submodule("feed_forward"))
        return nn.ModuleList(found)

    @property
    def sparse_source(self) -> bool:
        """Whether the target hears a part of the source, by its place."""
        return any(
            isinstance(block.get_submodule("source.attention"), SparseAttention)
            for block in self.decoder.blocks
        )

    def forward(
        self,
        source: Int[Tensor, "b m"],
        target: Int[Tensor, "b n"],
        *,
        padding: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n v"]:
        """Logits of what follows each target token; none of them hears a later one.

        Args:
            source: Token ids.
            target: Token ids, the first of them the sign that a text begins.
            padding: True for tokens of the source that are padding.

        Raises:
            InputError: If source or target are longer than max_len.
        """
        return self.head(self.states(source, target, padding=padding))

    def states(
        self,
        source: Int[Tensor, "b m"],
        target: Int[Tensor, "b n"],
        *,
        padding: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """The states of the target after the last norm."""
        return self.decoder(target, self.encoded(source, padding), padding)

    def encoded(
        self, source: Int[Tensor, "b m"], padding: Bool[Tensor, "b m"] | None = None
    ) -> Float[Tensor, "b m d"]:
        """The states of the source."""
        return self.encoder.states(source, key_padding_mask=padding)

    def next_logits(
        self,
        target: Int[Tensor, "b n"],
        context: Float[Tensor, "b m d"],
        padding: Bool[Tensor, "b m"] | None,
        caches: Sequence[BlockCache] | None,
    ) -> Float[Tensor, "b v"]:
        """Logits of what follows the last token, which caches may hold the past of."""
        if caches is not None:
            new = target[:, caches[0].own.length :]
            return self.head(self.decoder(new, context, padding, caches)[:, -1])
        # All places are filled, as a pattern may be for max_len tokens alone.
        n = target.shape[1]
        rest = target.new_zeros(len(target), self.config.max_len - n)
        states = self.decoder(torch.cat([target, rest], 1), context, padding)
        return self.head(states[:, n - 1])


def sparse_mixers(
    config: EncoderDecoderConfig,
    layers: int,
    pattern: Pattern | Callable[[int], Pattern],
    configuration: Configuration,
    options: TorchOptions | None = None,
) -> list[SparseAttention]:
    """Sparse attention for so many blocks, which are counted from 0."""
    made: TorchOptions = options or {"device": None, "dtype": None}
    return [
        SparseAttention(
            config.dim, config.heads, pattern, configuration=configuration,
            layer_index=layer, dropout=config.attention_dropout, **made,
        )
        for layer in range(layers)
    ]  # fmt: skip


def _dense(
    config: EncoderDecoderConfig, causal: bool, options: TorchOptions
) -> list[RelativeAttention]:
    return [
        RelativeAttention(
            config.dim, config.heads, causal=causal, dropout=config.attention_dropout,
            **options,
        )
        for _ in range(config.decoder_layers)
    ]  # fmt: skip
