"""The arms of `sparse-translation`: a pattern for the encoder, and one for the decoder.

Patterns are those of n tokens, the longest paragraph; a shorter one is given their first
tokens. Under a causal mask STAR is a sliding window. In the encoder its relay, the last
token, would be padding: there it is the first. RANDOM is matched with the union of STRIDED
(`matched`).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from everyformer.data.randomness import mixed_key
from everyformer.experiments.matched import matched
from everyformer.experiments.sparse_arms import LARGEST_DRAW, Arm
from everyformer.layers.masked_attention import MaskedAttention
from everyformer.layers.models.encoder_decoder import EncoderDecoderConfig
from everyformer.patterns import Part, cycle, strided

SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class TranslationArm:
    """An arm of both sides of a network.

    Attributes:
        name: Of the arm.
        width: w; of random that of the strided union it is matched with.
        model: Sizes of the network.
        draw: Of random: every layer of every side has its own sets.
    """

    name: str
    width: int
    model: EncoderDecoderConfig
    draw: int = 0

    def layers(self, side: str) -> int:
        """Blocks of a side."""
        own = self.model
        return own.encoder_layers if side == "encoder" else own.decoder_layers

    def side(self, side: str) -> Arm:
        """The arm of the encoder or the decoder."""
        n, causal = self.model.max_len, side == "decoder"
        if self.name == "random":
            like = strided(n, self.width).union().parts[0]
            keys = (
                mixed_key(self.draw, SIDES.index(side), layer) % LARGEST_DRAW
                for layer in range(self.layers(side))
            )
            drawn = cycle(*(matched(like, key) for key in keys))
            return Arm("random", self.width, n, causal, self.draw, drawn)
        name = "star-first" if self.name == "star" and not causal else self.name
        return Arm(name, self.width, n, causal)

    def mixers(self, side: str) -> list[MaskedAttention]:
        """Self-attention of every block of a side."""
        own = self.model
        return self.side(side).mixers(own.dim, own.heads, self.layers(side))

    def density(self) -> float:
        """Connections of n tokens in per cent of allowed pairs, the mean of both sides."""
        n = np.array([self.model.max_len])
        return 50 * sum(
            float(connections(self, side)[-1] / allowed_pairs(side, n)[0]) for side in SIDES
        )

    def density_of(self, sources: np.ndarray, targets: np.ndarray) -> float:
        """The same of texts of these lengths: what padding hides does not count."""
        found, allowed = 0.0, 0.0
        for side, sizes in zip(SIDES, (sources, targets), strict=True):
            found += float(connections(self, side)[sizes - 1].sum())
            allowed += float(allowed_pairs(side, sizes).sum())
        return 100 * found / allowed


def allowed_pairs(side: str, sizes: np.ndarray) -> np.ndarray:
    """m^2 pairs of m tokens, of which m (m + 1) / 2 are not of the future."""
    m = sizes.astype(np.float64)
    return m * (m + 1) / 2 if side == "decoder" else m * m


@lru_cache(maxsize=128)
def connections(arm: TranslationArm, side: str) -> np.ndarray:
    """Connections among the first 1, 2, .., n tokens, the mean of layers and heads."""
    own = arm.side(side)
    return np.mean(
        [
            np.mean([_leading(part) for part in own.parts(layer)], axis=0)
            for layer in range(arm.layers(side))
        ],
        axis=0,
    )


def _leading(part: Part) -> np.ndarray:
    return part.mask().cumsum(0).cumsum(1).diagonal()
