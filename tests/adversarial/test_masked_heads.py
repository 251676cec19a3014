"""Heads with finite masks, drawn at random around what float64 and the proof call silent.

Scores of masks lie about 745 (where exp is 0 in float64) and 800 (where a token is silent)
below the others, or far beyond; f has the masked tokens, or one number in place of their
scores, or not; stored masks are off from what they stand for. A head is refused, or its
bounds hold for every run that is tried.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from tests.adversarial.hand_compiled import Hand, Head

GAPS = (1.0, 700.0, 745.0, 776.0, 799.0, 801.0, 812.0, 850.0, 8192.0, 1e9, 2.0**60)
DOMAINS = ((0.0, 1.0), (-1.0, 1.0), (-1e-200, 1e-200), (2.0, 3.0))


@dataclass(frozen=True)
class Draw:
    """sum_k e^(live x_j x_k + q_j m_k) (x_k - 3/4), divided by the weights' sum or not."""

    divided: bool
    c: float
    live: float
    q: np.ndarray
    mask: np.ndarray
    off: float
    heard: np.ndarray
    everyone: bool
    domain: tuple[float, float]
    faint: float | None = None

    @classmethod
    def of(cls, rng: np.random.Generator) -> "Draw":
        divided, c = bool(rng.random() < 0.5), float(rng.choice([12.0, 24.0, 60.0, 138.0]))
        live = float(rng.choice([1.0, 0.125, 4.0, -1.0]))
        q, mask = rng.choice([0.0, 1.0, 1.0, 2.0], 2), -rng.choice(GAPS, 2)
        mask[int(rng.integers(2))] = 0.0
        low, high = DOMAINS[int(rng.integers(len(DOMAINS)))]
        reach = abs(live) * max(abs(low), abs(high)) ** 2
        scores = np.outer(q, mask)
        if divided:
            scores -= scores.max(axis=1, keepdims=True)
        lowest = -(2 * reach + 808) if divided else c - 801 - reach
        heard = scores > lowest if rng.random() < 0.6 else np.ones((2, 2), bool)
        off = float(rng.choice([0.0, 0.0, 2.0**-50, 0.5, 1.5]))
        everyone = bool(rng.random() < 0.5)
        return cls(divided, c, live, q, mask, off, heard, everyone, (low, high))

    def target(self, x: np.ndarray) -> np.ndarray:
        mask = np.outer(self.q, self.mask)
        if self.faint is not None:
            scores = self.live * (x @ np.swapaxes(x, -1, -2)) + mask
            weights = np.exp(np.where(self.heard, scores, self.faint))
            return weights @ (x - 0.75) / weights.sum(axis=-1, keepdims=True)
        if self.divided:
            mask = mask - mask.max(axis=1, keepdims=True)
        weights = np.exp(self.live * (x @ np.swapaxes(x, -1, -2)) + mask)
        weights = weights if self.heard.all() else weights * self.heard
        sums = weights @ (x - 0.75)
        return sums / weights.sum(axis=-1, keepdims=True) if self.divided else sums

    def hand(self) -> Hand:
        """Registers: x, the null token's score, q, the mask, 1, the result."""
        hand = Hand(self.target, 2, 1, 6, domain=self.domain)
        stored = self.mask + self.off * (self.mask != 0)
        hand.start = {2: self.q, 3: stored, 4: [1.0, 1.0]}
        if self.off:
            ideal = [str(Fraction(float(one))) for one in self.mask]
            hand.coefficients = {"start": [[j, 3, one] for j, one in enumerate(ideal)]}
        claim = {"step": "attend" if self.divided else "exponential sum"}
        if self.divided and self.everyone:
            claim["everyone"] = "yes"
        if self.faint is not None:
            claim["faint"] = str(Fraction(self.faint))
        if not self.divided:
            hand.prefix = np.zeros((1, 6))
            hand.prefix[0, 1] = self.c
        factor = 1.0 if self.divided else math.exp(self.c)
        queries = [({0: self.live}, 0.0), ({}, 1.0), ({2: 1.0}, 0.0)]
        keys = [{0: 1.0}, {1: 1.0}, {3: 1.0}]
        hand.block([Head(claim, queries, keys, [{0: 1.0, 4: -0.75}], [(5, factor)])])
        hand.out = [{5: 1.0}]
        return hand


@pytest.mark.filterwarnings("ignore")
def test_heads_with_finite_masks_are_refused_or_bounded() -> None:
    proved = {False: 0, True: 0}
    for seed in range(30):
        draw = Draw.of(np.random.default_rng(seed))
        hand = draw.hand()
        if not hand.refused():
            proved[draw.divided] += 1
            assert hand.is_honest(), f"seed {seed}: {draw}"
    assert min(proved.values()) >= 5, proved


def numbered(seed: int) -> Draw:
    """f has a number in place of scores, about 800 below the others, or far beyond."""
    rng = np.random.default_rng(seed)
    draw = replace(Draw.of(rng), divided=True)
    scores = np.outer(draw.q, draw.mask)
    reach = abs(draw.live) * max(map(abs, draw.domain)) ** 2
    heard = scores > scores.max(axis=1, keepdims=True) - 2 * reach - 808
    faint = float(scores[heard].min() - reach - rng.choice(GAPS))
    return replace(draw, heard=heard, faint=faint)


@pytest.mark.filterwarnings("ignore")
def test_a_number_in_place_of_scores_is_refused_or_bounded() -> None:
    proved = [seed for seed in range(24) if not numbered(seed).hand().refused()]
    assert len(proved) >= 5
    for seed in proved:
        assert numbered(seed).hand().is_honest(), f"seed {seed}: {numbered(seed)}"


def masked_by(number: float, *, said: float | None = None) -> Hand:
    """Token 1 hears itself; f has a number in place of the other score."""
    ones, mask = np.array([1.0, 0.0]), np.array([0.0, -(2.0**13)])
    heard = np.array([[True, False], [True, True]])
    draw = Draw(True, 0.0, 1.0, ones, mask, 0.0, heard, False, (0.0, 1.0), number)
    hand = draw.hand()
    if said is not None:
        hand.blocks[0][0][0].claim["faint"] = str(Fraction(said))
    return hand


def test_a_number_in_place_of_scores_must_be_far_below_and_f_s_own() -> None:
    assert masked_by(-1e9).bounds()[0] < 1e-150
    assert masked_by(-1e9).is_honest()
    for near in (3.0, 0.0, -1.0, -700.0, -800.5):
        assert "is not far below" in masked_by(near).refused()
    assert "is not f" in masked_by(-1e9, said=-1e8).refused()
    assert "is not far below" in masked_by(-1e9, said=1e9).refused()
    bare = masked_by(-1e9)
    del bare.blocks[0][0][0].claim["faint"]
    assert "is not f" in bare.refused()
