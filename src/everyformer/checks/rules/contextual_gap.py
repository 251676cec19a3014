"""EF008: contexts are told apart on a finite set.

What it checks:
    There are weights such that, on a finite set of sequences (all over two random tokens,
    or 64 of them, or 16 of more than 8,192 numbers each), every token of every sequence
    gets an output of its own. Measured is the gap, the least distance of two outputs, in
    the best of several draws of the weights; the first in which no two are nearly equal
    will do.

Why it matters:
    A contextual mapping is the heart of the proofs: a feed-forward layer can only map a
    token to the value f has there if no other token, in any other context, looks the same.

Satisfied by:
    Layers with positions and attention: some weights have a gap.

Violated by:
    Layers that mix nothing; average attention on sequences with the same mean; layers for
    which equal tokens stay equal, on constant sequences.

Source:
    Yun et al. 2020, Definition 5.1.
"""

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule
from everyformer.checks.rules import equal_tokens
from everyformer.checks.subject import Subject, Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import YUN2020, Citation, implements

MAX_SEQUENCES = 64

LARGEST_QUICK = 2**13
"""Numbers of a sequence up to which a run of it takes no time to speak of."""

FEW_SEQUENCES = 16
"""Where each of them takes a while."""

BEYOND_ROUNDING = 10
"""So many times what counts as a violation a gap is not rounding: tokens are apart."""


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """Equal tokens that stay equal collide."""
    return _unless_equal(equal_tokens.by_structure(spec, n))


def by_operations(followed: Followed) -> Answer:
    """Equal tokens that stay equal collide."""
    return _unless_equal(equal_tokens.by_operations(followed))


def _unless_equal(equal: Answer) -> Answer:
    if equal.holds:
        return Answer(False, f"tokens of a constant sequence collide: {equal.reason}")
    return Answer(None, "")


@implements(YUN2020, "Definition 5.1")
def gap(trial: Trial, sequences: np.ndarray) -> float:
    """The least distance of two outputs, of all tokens of all sequences."""
    found = trial.outputs(sequences)
    return least_distance(found.reshape(-1, found.shape[-1]))


def least_distance(points: np.ndarray) -> float:
    """min over k != l of max_c |x_kc - x_lc|.

    Points are sorted by the coordinate that varies most; pairs s places apart differ in it
    by more and more as s grows, so the search ends when all do by more than the least
    distance so far. Points that are not numbers are told apart from nothing: 0.
    """
    if not np.isfinite(points).all():
        return 0.0
    widest = int(np.argmax(np.ptp(points, axis=0)))
    points = points[np.argsort(points[:, widest], kind="stable")]
    least = np.inf
    for s in range(1, len(points)):
        near = np.flatnonzero(points[s:, widest] - points[:-s, widest] < least)
        if not len(near):
            break
        apart = np.abs(points[near + s] - points[near]).max(axis=-1)
        least = min(least, float(apart.min()))
    return least


def sequences_over(pair: np.ndarray, n: int) -> np.ndarray:
    """All sequences of length n over two tokens, or some of them, spread evenly."""
    few = n * pair.shape[1] > LARGEST_QUICK
    count = min(2**n, FEW_SEQUENCES if few else MAX_SEQUENCES)
    numbers = [k * (2**n - 1) // (count - 1) for k in range(count)]
    bits = [[number >> j & 1 for j in range(n)] for number in numbers]
    return pair[np.array(bits)]


def measure(subject: Subject, trials: int, seed: int) -> str:
    """The largest gap of the draws of the weights."""
    found, count = largest_gap(subject, trials, seed)
    return f"measured on {count} sequences: a gap of {found:.2g}"


def largest_gap(subject: Subject, trials: int, seed: int) -> tuple[float, int]:
    """Over the draws of the weights, on sequences over two random tokens; how many.

    One far beyond rounding ends the search: there are such weights.
    """
    pair = np.random.default_rng(seed).standard_normal((2, subject.d_model))
    sequences = sequences_over(pair, subject.seq_len)

    def of(trial: Trial) -> float:
        return float(trial.once("gap", pair, lambda: np.array(gap(trial, sequences))))

    largest = 0.0
    for trial in subject.trials(trials, seed):
        largest = max(largest, of(trial))
        if largest > BEYOND_ROUNDING * subject.violated:
            break
    return largest, len(sequences)


RULE = Rule(
    "EF008",
    "contexts-told-apart",
    "measure",
    __doc__,
    Citation(YUN2020, "Definition 5.1"),
    by_structure,
    by_operations,
    measure=measure,
)
