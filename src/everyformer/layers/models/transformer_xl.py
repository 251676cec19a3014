"""Transformer-XL: a stack of causal blocks that remembers the segments before (2019).

Every layer keeps its own inputs of the last m tokens, and no gradient goes there. So a
segment of n tokens is read with a context that grows by m with each layer, for the price of
n queries and m + n keys. Any encoding of relative positions, and any gain of URPE, one for
all layers or one for each, works with it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from everyformer.errors import refuse
from everyformer.layers.encodings import Encoding, encoding_by_name
from everyformer.layers.encodings.encoding import TABLE_STD, table
from everyformer.layers.encodings.transformer_xl import sinusoids
from everyformer.layers.gains import Gain, ToeplitzGain
from everyformer.layers.models.adaptive_softmax import AdaptiveSoftmax
from everyformer.layers.models.segment_attention import (
    Distances,
    EncodedAttention,
    SegmentAttention,
    SinusoidalAttention,
    Sinusoids,
    by_distance,
)
from everyformer.layers.offsets import by_offset, check_positive
from everyformer.layers.past import Past
from everyformer.layers.torch_options import TorchOptions

GainKind = Literal["none", "shared", "layer"]


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig:
    """Sizes and kinds; the defaults are those of the base model for WikiText-103.

    Attributes:
        vocab_size: Number of words.
        max_len: Tokens of a segment and its memory in training: distances up to
            max_len - 1 have their own entries in the tables of gains and encodings.
        dim: Width of a token.
        layers: Number of blocks.
        heads: Of attention.
        head_dim: Coordinates of a head.
        ffn: Hidden units of a feed-forward layer.
        encoding: "xl", or an encoding that `encoding_by_name` knows, one for all layers.
        gain: Of URPE: "none", one "shared" by all layers, or one of each "layer".
        dropout: Of embeddings, states, hidden units and r.
        attention_dropout: Of weights.
        cutoffs: Of the adaptive softmax; none for a plain one.
        div_value: Of the adaptive softmax.
    """

    vocab_size: int
    max_len: int = 300
    dim: int = 410
    layers: int = 16
    heads: int = 10
    head_dim: int = 41
    ffn: int = 2100
    encoding: str = "xl"
    gain: str = "none"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    cutoffs: tuple[int, ...] = ()
    div_value: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be built.

        Raises:
            InputError: With the reason.
        """
        names = ("vocab_size", "max_len", "dim", "layers", "heads", "head_dim", "ffn")
        check_positive(**{name: getattr(self, name) for name in names})
        wrong: list[str] = []
        if self.dim % 2:
            wrong.append(f"dim={self.dim} is odd, but r has a sine for each cosine")
        if self.gain not in get_args(GainKind):
            wrong.append(f"gain={self.gain!r} is not in {', '.join(get_args(GainKind))}")
        wrong += [
            f"{name}={getattr(self, name)} is not in [0, 1)"
            for name in ("dropout", "attention_dropout")
            if not 0 <= getattr(self, name) < 1
        ]
        if self.max_len < 2:
            wrong.append(f"max_len={self.max_len} has no distance but 0")
        if self.encoding != "xl" and self.dim != self.heads * self.head_dim:
            wrong.append(
                f"encoding={self.encoding!r} needs dim={self.dim} to be heads x head_dim = "
                f"{self.heads} x {self.head_dim}"
            )
        refuse("A Transformer-XL cannot be built", wrong)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self) | {"cutoffs": list(self.cutoffs)}


class Remembered(NamedTuple):
    """What a stack keeps of the tokens before a segment.

    Attributes:
        states: The inputs of every layer.
        filled: How many of the m places of a sequence hold a token; the last ones do.
    """

    states: Float[Tensor, "layers b m d"]
    filled: Int[Tensor, " b"]


class View(NamedTuple):
    """How far tokens see, where it differs from training.

    Attributes:
        clamp: Distances beyond count as this one, for r and for the gain; None clamps
            nothing, and refuses what is longer than max_len.
        same_length: Whether every token sees as many tokens as the memory has places,
            itself included; else all of memory and segment before it.
    """

    clamp: int | None = None
    same_length: bool = False


class Block(nn.Module):
    """LN(x + attention), LN(x + ReLU layers): post-norm."""

    def __init__(
        self,
        config: TransformerXLConfig,
        encoding: Encoding | None,
        options: TorchOptions,
    ) -> None:
        """A block of the sizes of the config; without an encoding, with sinusoids."""
        super().__init__()
        dim, heads, dropped = config.dim, config.heads, config.attention_dropout
        self.attention: SegmentAttention = (
            SinusoidalAttention(dim, heads, config.head_dim, dropped, options)
            if encoding is None
            else EncodedAttention(dim, heads, encoding, dropped, options)
        )
        self.attention_norm = nn.LayerNorm(config.dim, **options)
        self.first = nn.Linear(config.dim, config.ffn, **options)
        self.second = nn.Linear(config.ffn, config.dim, **options)
        self.norm = nn.LayerNorm(config.dim, **options)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b m d"],
        distances: Distances,
    ) -> Float[Tensor, "b n d"]:
        """The states of the segment after this block."""
        heard = self.dropout(self.attention(x, memory, distances))
        x = self.attention_norm(x + heard)
        inner = self.dropout(torch.relu(self.first(x)))
        return self.norm(x + self.dropout(self.second(inner)))


class TransformerXLModel(nn.Module):
    """A language model with memory: tokens to the states that predict the next ones.

    Weights start as N(0, 0.02^2), biases at 0, norms and gains at 1. Words enter times
    sqrt(dim), as in the released code. The output shares the vectors of the words.

    Args:
        config: All sizes.
        device: As in torch.
        dtype: As in torch.

    Example:
        >>> config = TransformerXLConfig(vocab_size=50, max_len=8, dim=8, layers=2,
        ...     heads=2, head_dim=4, ffn=16, gain="shared")
        >>> model = TransformerXLModel(config)
        >>> memory = model.no_memory(3, 4)
        >>> states, memory = model.states(torch.zeros(3, 4, dtype=torch.long), memory)
        >>> states.shape, memory.states.shape, memory.filled.tolist()
        (torch.Size([3, 4, 8]), torch.Size([2, 3, 4, 8]), [4, 4, 4])
    """

    def __init__(
        self,
        config: TransformerXLConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        options: TorchOptions = {"device": device, "dtype": dtype}
        self.config = config
        self.words = AdaptiveSoftmax(
            config.vocab_size, config.dim, config.cutoffs, config.div_value, **options
        )
        own = config.encoding == "xl"
        self.content_bias = table(config.heads, config.head_dim, **options) if own else None
        self.position_bias = (
            table(config.heads, config.head_dim, **options) if own else None
        )
        encoding = None if own else _named(config, options)
        self.blocks = nn.ModuleList(
            Block(config, encoding, options) for _ in range(config.layers)
        )
        made = {"none": 0, "shared": 1, "layer": config.layers}[config.gain]
        past = Past(config.max_len - 1)
        self.gains: Sequence[ToeplitzGain] = nn.ModuleList(
            ToeplitzGain(config.heads, buckets=past, **options) for _ in range(made)
        )  # type: ignore[assignment]
        self.dropout = nn.Dropout(config.dropout)
        self.head = Logits(self.words)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights N(0, 0.02^2), biases 0, norms and gains 1."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=TABLE_STD)
                if "bias" in dict(part.named_parameters()):
                    nn.init.zeros_(part.bias)
            elif isinstance(part, nn.LayerNorm | Gain | AdaptiveSoftmax):
                part.reset_parameters()
        for bias in (self.content_bias, self.position_bias):
            if bias is not None:
                nn.init.normal_(bias, std=TABLE_STD)

    def no_memory(self, batch: int, places: int) -> Remembered:
        """A memory without any token."""
        like = self.words.word_bias
        shape = (self.config.layers, batch, places, self.config.dim)
        filled = torch.zeros(batch, dtype=torch.long, device=like.device)
        return Remembered(like.new_zeros(shape), filled)

    def states(
        self,
        tokens: Int[Tensor, "b n"],
        memory: Remembered,
        view: View = View(),  # noqa: B008  # a tuple, which nobody can change
    ) -> tuple[Float[Tensor, "b n d"], Remembered]:
        """The states of a segment, and what to remember after it.

        Args:
            tokens: Of the segment.
            memory: Of the tokens before it.
            view: How far tokens see.

        Raises:
            InputError: If the memory is of another batch or stack, or distances have no
                entry.
        """
        self._check(tokens, memory, view)
        places = memory.states.shape[2]
        x = self.dropout(self.words.embedded(tokens) * self.config.dim**0.5)
        distances = self._distances(tokens.shape[1], memory, view, x.dtype)
        inputs: list[Tensor] = []
        gains = self._gain_matrices(tokens.shape[1], places, view)
        for layer, block in enumerate(self.blocks):
            inputs.append(x.detach())
            gain = None if not gains else gains[layer % len(gains)]
            own = distances._replace(gain=gain)
            x = block(x, memory.states[layer], own)
        return self.dropout(x), _kept(memory, inputs)

    def _distances(
        self, n: int, memory: Remembered, view: View, dtype: torch.dtype
    ) -> Distances:
        """What all layers share, without the gain."""
        places, device = memory.states.shape[2], memory.states.device
        positions = None
        if self.content_bias is not None and self.position_bias is not None:
            wide = torch.promote_types(dtype, torch.float32)
            far = torch.arange(places + n - 1, -1, -1, device=device)
            far = far if view.clamp is None else far.clamp(max=view.clamp)
            r = self.dropout(sinusoids(far.to(wide), self.config.dim).to(dtype))
            positions = Sinusoids(r, self.content_bias, self.position_bias)
        hidden = hidden_keys(n, places, memory.filled, same_length=view.same_length)
        return Distances(hidden, positions)

    def _gain_matrices(
        self, n: int, places: int, view: View
    ) -> list[Float[Tensor, "h n n_k"]]:
        """c_ij of each gain: one for all layers, or one for each."""
        found: list[Tensor] = []
        for gain in self.gains:
            vector = by_offset(gain.table, gain.index, 1, places + n)
            if view.clamp is not None:
                reach = torch.arange(places + n, device=vector.device)
                vector = vector[:, reach.clamp(max=view.clamp)]
            found.append(by_distance(vector.flip(-1)[:, None].expand(-1, n, -1)))
        return found

    def _check(self, tokens: Tensor, memory: Remembered, view: View) -> None:
        config = self.config
        wrong: list[str] = []  # torch.compile does not know list[str]()
        layers, batch, places, dim = memory.states.shape
        if (layers, batch, dim) != (config.layers, len(tokens), config.dim):
            wrong.append(
                f"the memory has {layers} layers, {batch} sequences and width {dim}, this "
                f"stack {config.layers}, {len(tokens)} and {config.dim}: make it with "
                "no_memory"
            )
        if view.same_length and places < 1:
            wrong.append("same_length with a memory of 0 places leaves nothing to see")
        longest = places if view.same_length else places + tokens.shape[1]
        reach = longest if view.clamp is None else min(longest, view.clamp + 1)
        if reach > config.max_len:
            told = "" if view.clamp is None else f" and clamp={view.clamp}"
            wrong.append(
                f"a segment of {tokens.shape[1]} tokens and a memory of {places}{told} "
                f"have distances up to {reach - 1}, and max_len={config.max_len} trains "
                f"them up to {config.max_len - 1}: pass View(clamp={config.max_len - 1}), "
                "or a shorter memory"
            )
        refuse("This segment cannot be read", wrong)


class Logits(nn.Module):
    """The logits of all words, by the vectors with which they enter."""

    def __init__(self, words: AdaptiveSoftmax) -> None:
        """Of these words; it has no parameters of its own."""
        super().__init__()
        self.words = words

    def forward(self, states: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch words"]:
        """Plain logits; with cutoffs, the logarithms of adaptive probabilities."""
        words = self.words
        if words.table is None or len(words.edges) > 2:
            return words.log_probabilities(states)
        return nn.functional.linear(states, words.table, words.word_bias)


def hidden_keys(
    n: int, places: int, filled: Int[Tensor, " b"], *, same_length: bool
) -> Bool[Tensor, "b 1 n n_k"]:
    """True for keys that a query does not see: later ones, empty places, too old ones."""
    query = torch.arange(n, device=filled.device)[:, None] + places
    key = torch.arange(places + n, device=filled.device)
    hidden = key > query
    if same_length:
        hidden = hidden | (key <= query - places)
    empty = key < places - filled[:, None]
    return hidden | empty[:, None, None]


def _kept(memory: Remembered, inputs: list[Tensor]) -> Remembered:
    """The last inputs of every layer, as many as there are places."""
    states, filled = memory
    places = states.shape[2]
    with torch.no_grad():
        new = torch.stack([x.to(states.dtype) for x in inputs])
        n = new.shape[2]
        joined = new if n >= places else torch.cat([states, new], 2)
        cut = joined[:, :, joined.shape[2] - places :]
        return Remembered(cut, (filled + n).clamp(max=places))


def _named(config: TransformerXLConfig, options: TorchOptions) -> Encoding:
    """The encoding of that name; "none" is one that changes nothing."""
    found = encoding_by_name(
        config.encoding, embed_dim=config.dim, num_heads=config.heads,
        max_len=config.max_len, clamp=True, causal=True, **options,
    )  # fmt: skip
    return Encoding() if found is None else found
