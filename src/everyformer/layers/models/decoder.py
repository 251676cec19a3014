"""The decoder of a translation: causal self-attention, attention to a source, feed-forward.

Each block adds three parts to its tokens, each to the norm of what it is given:

    x <- x + A(LN(x)),    x <- x + C(LN(x), source),    x <- x + W_2 activation(W_1 LN(x))

A is causal, dense or over a causal pattern; C hears the states of the source, all of them
or those of a pattern. With caches the tokens of a call follow those of the calls before.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from everyformer.errors import InputError, PatternError
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.encodings.encoding import table
from everyformer.layers.key_cache import KeyCache
from everyformer.layers.masked_attention import MaskedAttention
from everyformer.layers.models.encoder_block import activation, begin_anew
from everyformer.layers.sparse_attention import SparseAttention
from everyformer.layers.torch_options import TorchOptions
from everyformer.patterns import Part
from everyformer.patterns.leading import first_of

Attention = RelativeAttention | SparseAttention | MaskedAttention


@dataclass(frozen=True)
class BlockCache:
    """What one block knows of earlier tokens, and of the source.

    Attributes:
        own: Keys of the tokens.
        source: Keys of the source.
    """

    own: KeyCache
    source: KeyCache


class AddedAttention(nn.Module):
    """x + dropout(attention(LN(x))), to the tokens themselves or to a source."""

    def __init__(
        self, dim: int, attention: Attention, dropout: float, options: TorchOptions
    ) -> None:
        """Around a layer of attention."""
        super().__init__()
        self.norm = nn.LayerNorm(dim, **options)
        self.attention = attention
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d"], **given: Any) -> Float[Tensor, "b n d"]:
        """The tokens, and what attention adds; `given` is for the layer."""
        return x + self.dropout(self.attention(self.norm(x), **given))


class AddedFeedForward(nn.Module):
    """x + dropout(W_2 activation(W_1 LN(x) + b_1) + b_2)."""

    def __init__(
        self, dim: int, ffn: int, name: str, dropout: float, options: TorchOptions
    ) -> None:
        """Of these sizes, with the activation of that name."""
        super().__init__()
        self.norm = nn.LayerNorm(dim, **options)
        self.layers = nn.Sequential(
            nn.Linear(dim, ffn, **options), activation(name), nn.Linear(ffn, dim, **options)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """The tokens, each with what it makes of itself."""
        return x + self.dropout(self.layers(self.norm(x)))


class DecoderBlock(nn.Module):
    """Self-attention, attention to the source, feed-forward."""

    def __init__(
        self, own: AddedAttention, source: AddedAttention, feed_forward: AddedFeedForward
    ) -> None:
        """Of its three parts."""
        super().__init__()
        self.own, self.source, self.feed_forward = own, source, feed_forward

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"],
        padding: Bool[Tensor, "b m"] | None,
        cache: BlockCache | None = None,
    ) -> Float[Tensor, "b n d"]:
        """One step of all three; `padding` is that of the source."""
        place = 0 if cache is None else cache.own.length
        x = self.own(x) if cache is None else self.own(x, cache=cache.own)
        x = self.source(
            x,
            context=context,
            offset=place,
            key_padding_mask=padding,
            cache=None if cache is None else cache.source,
        )
        return self.feed_forward(x)


class Decoder(nn.Module):
    """States of target tokens that hear earlier ones and a source.

    Args:
        tokens: The embedding of tokens, which somebody else may share.
        max_len: Places of a target.
        blocks: Its blocks, whose self-attention must be causal.
        dropout: On the embeddings.
        options: Device and dtype.

    Raises:
        InputError: If some token could hear a later one, or hears others in a short
            sequence, or of a short source, than in a long one.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        max_len: int,
        blocks: Sequence[DecoderBlock],
        dropout: float,
        options: TorchOptions,
    ) -> None:
        super().__init__()
        for number, block in enumerate(blocks):
            check_causal(block.own.attention, max_len, number)
            if isinstance(block.source.attention, SparseAttention):
                where = f"Block {number} of the decoder, attention to the source"
                check_alike(block.source.attention, max_len, where)
        self.max_len = max_len
        dim = tokens.embedding_dim
        self._tokens = (tokens,)
        self.positions = table(max_len, dim, **options)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(dim, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights N(0, 0.02^2), biases 0, norms 1; the embedding is not the decoder's."""
        begin_anew(self)

    def caches(self) -> list[BlockCache]:
        """Empty caches, one for each block, for at most max_len tokens."""
        return [BlockCache(KeyCache(self.max_len), KeyCache()) for _ in self.blocks]

    def forward(
        self,
        target: Int[Tensor, "b n"],
        context: Float[Tensor, "b m d"],
        padding: Bool[Tensor, "b m"] | None = None,
        caches: Sequence[BlockCache] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """The states of target tokens.

        Padding at the end of a target needs no mask: nobody before hears it.

        Args:
            target: Token ids; with caches, those that follow the ones held.
            context: States of the source.
            padding: True for tokens of the source that nobody hears.
            caches: What `caches` made; a call that fails changes none of them.

        Raises:
            InputError: If the target is longer than max_len.
        """
        past = 0 if caches is None else caches[0].own.length
        last = past + target.shape[1]
        if last > self.max_len:
            before = f"{past} tokens before and {target.shape[1]}" if past else f"{last}"
            msg = (
                f"The target has {before} tokens, but there are positions for max_len="
                f"{self.max_len}. Cut it, or make a decoder with a larger max_len."
            )
            raise InputError(msg)
        x = self.dropout(self._tokens[0](target) + self.positions[past:last])
        if caches is None:
            for block in self.blocks:
                x = block(x, context, padding)
            return self.norm(x)
        every = [cache for one in caches for cache in (one.own, one.source)]
        with KeyCache.unchanged_if_it_fails(every):
            for block, cache in zip(self.blocks, caches, strict=True):
                x = block(x, context, padding, cache)
            return self.norm(x)


def check_causal(attention: nn.Module, max_len: int, number: int) -> None:
    """Refuse self-attention of a decoder in which a token hears a later one.

    A pattern that is made for each length must also begin alike at every length: else a
    token that is decoded would hear others than in training.

    Raises:
        InputError: With the reason.
    """
    where = f"Block {number} of the decoder"
    if not isinstance(attention, SparseAttention | MaskedAttention):
        if not (isinstance(attention, RelativeAttention) and attention.causal):
            msg = (
                f"{where} has a {type(attention).__name__} in which tokens hear later "
                "ones. Give RelativeAttention(.., causal=True), or SparseAttention with "
                "pattern.causal_part()."
            )
            raise InputError(msg)
        return
    masked = isinstance(attention, MaskedAttention)
    whole = attention.parts if masked else attention.for_length(max_len)
    if whole[0].n < max_len:
        msg = (
            f"{where} has a pattern for n={whole[0].n} tokens, fewer than max_len="
            f"{max_len}. Give a pattern for {max_len} tokens."
        )
        raise InputError(msg)
    if not all(part.is_causal for part in whole):
        kinds = ", ".join(part.kind for part in whole)
        msg = (
            f"{where} has a pattern ({kinds}) in which tokens hear later ones. Take "
            "pattern.causal_part()."
        )
        raise InputError(msg)
    if not masked:
        check_alike(attention, max_len, where)


def check_alike(attention: SparseAttention, max_len: int, where: str) -> None:
    """Refuse a pattern that is made for each length, and does not begin alike at each.

    Decoding asks for that of max_len tokens, training for that of its sequences. Lengths
    that the function refuses are passed over.

    Raises:
        InputError: With the reason.
    """
    if not callable(attention.pattern):
        return
    whole = attention.for_length(max_len)
    for most in {max(1, max_len // 2), max(1, max_len - 1)}:
        found = _up_to(attention, most)
        for long, short in zip(whole, found or whole, strict=True):
            if not _begins_with(long, short):
                msg = (
                    f"{where}: in the pattern made for {short.n} tokens some hear others "
                    f"than in that for max_len={max_len}, so that decoding would not give "
                    "what was trained. Give pattern.first of the pattern for max_len "
                    "tokens."
                )
                raise InputError(msg)


def _up_to(attention: SparseAttention, most: int) -> tuple[Part, ...] | None:
    """The parts for the largest number of tokens up to `most` that there are parts for."""
    for n in range(most, 0, -1):
        with suppress(PatternError):  # not a multiple of a width, for example
            return attention.for_length(n)
    return None


def _begins_with(long: Part, short: Part) -> bool:
    """Whether tokens hear the same ones among the first, as many as `short` is for."""
    with suppress(PatternError):  # a set of it may be empty
        if first_of(long, short.n) == short:
            return True  # without listing what a few sizes describe
    rows, own = long.rows(), short.rows()
    query, key = rows.listeners(), rows.indices
    kept = (query < short.n) & (key < short.n)
    return np.array_equal(query[kept], own.listeners()) and np.array_equal(
        key[kept], own.indices
    )
