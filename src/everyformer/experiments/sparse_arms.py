"""The arms of the sparse experiments: patterns, ways to use them, and their density.

Yun et al. 2020 (sparse) compare STRIDED, FIXED, STAR and RANDOM, used as UNION, MULTIHEAD
or SEQUENTIAL, at equal sparsity. The relay of STAR is its last token. Under a causal mask
nobody before it may hear it: what is left is a sliding window. `star-first` has the relay
at the first token, which everybody may hear. `random-matched` is RANDOM with as many
connections among the first m tokens as the union of STRIDED, for every m.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from everyformer.data.randomness import mixed_key
from everyformer.experiments.matched import matched
from everyformer.layers.masked_attention import MaskedAttention
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.layers.sparse_attention import Configuration
from everyformer.patterns import (
    Part,
    Pattern,
    dense,
    fixed,
    random,
    relabelled,
    star,
    strided,
)
from everyformer.train.config import TrainConfig
from everyformer.train.throughput import BACKWARD

LARGEST_DRAW = 2**31


def relay_first(n: int, width: int) -> Pattern:
    """STAR with its relay at token 1 (0-based: 0), before the ring.

    Example:
        >>> [row.tolist() for row in map(relay_first(5, 1).parts[0].heard, range(5))]
        [[0, 1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3], [0, 2, 3, 4], [0, 1, 3, 4]]
    """
    return relabelled(star(n, width), [*range(1, n), 0])


CONFIGURATIONS: Mapping[str, tuple[Callable[[int, int], Pattern], Configuration]] = {
    "dense": (lambda n, w: dense(n), "union"),
    "strided-union": (strided, "union"),
    "strided-multihead": (strided, "multihead"),
    "strided-sequential": (strided, "sequential"),
    "fixed-union": (fixed, "union"),
    "fixed-multihead": (fixed, "multihead"),
    "fixed-sequential": (fixed, "sequential"),
    "star": (star, "union"),
    "star-first": (relay_first, "union"),
    "random": (random, "union"),
    "random-matched": (strided, "union"),
}
"""By the name of an arm: its pattern of n and w (of the last arm, that which its draws are
like), and how a network uses it."""

RANDOM = ("random", "random-matched")


@dataclass(frozen=True)
class Arm:
    """A pattern of a size, and how the layers of a network use it.

    Attributes:
        name: One of `CONFIGURATIONS`, or of a pattern given.
        width: w of strided, fixed and star; keys of a token, of random; 0 for dense; w of
            the strided pattern that random-matched is like.
        seq_len: n.
        causal: Whether no token hears a later one.
        draw: Of random: layer l of draw s has its own sets, another for every (s, l).
        given: A pattern of the user's instead of one by name; its layers take turns.
    """

    name: str
    width: int
    seq_len: int
    causal: bool
    draw: int = 0
    given: Pattern | None = None

    @property
    def configuration(self) -> Configuration:
        """How several patterns are used."""
        return "sequential" if self.given is not None else CONFIGURATIONS[self.name][1]

    def pattern(self, layer: int) -> Pattern:
        """The pattern of a layer, 0-based."""
        found = self.given if self.given is not None else self._named(layer)
        return found.causal_part() if self.causal else found

    def _named(self, layer: int) -> Pattern:
        n, w = self.seq_len, self.width
        made, seed = CONFIGURATIONS[self.name][0], mixed_key(self.draw, layer)
        if self.name == "random":
            return random(n, w, seed=seed % LARGEST_DRAW)
        if self.name == "random-matched":
            return matched(made(n, w).union().parts[0], seed % LARGEST_DRAW)
        return made(n, w)

    def parts(self, layer: int) -> tuple[Part, ...]:
        """What the groups of heads of a layer use."""
        pattern = self.pattern(layer)
        if self.configuration == "union":
            return pattern.union().parts
        if self.configuration == "sequential":
            return (pattern.part_of(layer),)
        return pattern.parts

    def density(self, layers: int) -> float:
        """Connections / pairs that the mask allows, the mean over layers and heads."""
        return _density(self, layers) if self.given is None else _counted(self, layers)

    def mixers(self, dim: int, heads: int, layers: int) -> list[MaskedAttention]:
        """Attention of this width for every layer of a network."""
        return [
            MaskedAttention(
                dim, heads, self.pattern(layer), configuration=self.configuration,
                layer_index=layer,
            )
            for layer in range(layers)
        ]  # fmt: skip

    def encoder(self, model: EncoderConfig) -> Encoder:
        """An encoder with this arm in all layers."""
        return Encoder(model, mixers=self.mixers(model.dim, model.heads, model.layers))

    def to_json(self) -> dict[str, Any]:
        """What a comparison of arms may differ in."""
        told: dict[str, Any] = {"arm": self.name, "width": self.width}
        if self.name in RANDOM:
            told["draw"] = self.draw
        if self.given is not None:
            told["pattern"] = self.given.to_json()
        return told | {"configuration": self.configuration, "causal": self.causal}


def _counted(arm: Arm, layers: int) -> float:
    n = arm.seq_len
    pairs = n * (n + 1) // 2 if arm.causal else n * n
    shares = [
        sum(part.connections for part in parts) / len(parts) / pairs
        for parts in map(arm.parts, range(layers))
    ]
    return sum(shares) / layers


_density = cache(_counted)
"""Of arms by name: the cells of a comparison ask again and again."""


def operations(model: EncoderConfig, config: TrainConfig, n: int, predicted: int) -> float:
    """Of all updates, forward and backward; attention computes all pairs.

    2 L (4 d^2 + 2 d f + 2 n d) a token, and 2 (d^2 + d V) for each that is predicted.
    """
    d = model.dim
    blocks = n * model.layers * (4 * d * d + 2 * d * model.ffn + 2 * n * d)
    head = predicted * (d * d + d * model.vocab_size)
    return (1 + BACKWARD) * 2.0 * config.steps * config.batch * (blocks + head)
