"""EF005: the position-aware condition.

What it checks:
    There are weights and a vector v with different entries such that A(X) 1 = v for all X.

Why it matters:
    It is the second condition of Theorem 3: a head with constant values adds v to the
    tokens, and so makes positions where there were none.

Satisfied by:
    URPE on sequences: W_Q = W_K = 0, B = 0 and c_k = 1 for k >= 1, else 0, give
    A 1 = ((i-1)/n)_i; under a causal mask c_0 = 1, else 0, gives (1/i)_i. Where offsets
    share entries of the table, row i of A sums to sum_e share_i(e) c_e, and some table
    tells all rows apart if and only if no two have the same shares.

Violated by:
    Everything with rows that sum to 1 (EF002): then A 1 = 1. Gains whose rows have the same
    shares, such as those of |i - j|, are not decided.

Source:
    Luo et al. 2022, Theorem 3 and Proposition 4.
"""

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule
from everyformer.checks.subject import Subject
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import LUO2022, Citation, implements


@implements(LUO2022, "Theorem 3", "Proposition 4")
def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """Uniform weights times a gain with different rows have different row sums."""
    if spec.mixing == "offsets":
        return Answer(None, "tokens far from both ends may have equal row sums")
    if spec.mixing == "positions" and spec.fixed:
        return Answer(None, f"these are not free: {', '.join(spec.fixed)}")
    if spec.mixing == "positions":
        return Answer(True, "the weights are free, and so are their row sums")
    if not spec.normalised:
        return Answer(None, "without a denominator row sums may be anything")
    if not spec.gain:
        return Answer(False, "A 1 = 1: rows of weights sum to 1, whatever the weights")
    if spec.relative_to != "offset":
        return Answer(None, "nodes of a symmetric graph have equal row sums")
    if spec.fixed_bias or spec.rotary or spec.special_token:
        return Answer(None, "uniform weights cannot be made with what is fixed")
    if spec.fixed:
        return Answer(None, f"these are not free: {', '.join(spec.fixed)}")
    if spec.gain_rows == 0:
        return Answer(None, "its index of offsets is not one of the library's")
    if spec.gain_rows is not None and spec.gain_rows < n:
        differ = f"{spec.gain_rows} of {n} rows of the gain differ"
        return Answer(None, f"offsets share entries: only {differ} in what they hold")
    shown = "1/i" if spec.causal else "(i-1)/n"
    return Answer(True, f"W_Q = W_K = 0, B = 0 and a triangular C give A 1 = ({shown})_i")


def by_operations(followed: Followed) -> Answer:
    """Weights with sum 1 refute it."""
    if followed.output is not None and followed.output.means:
        return Answer(False, "A 1 = 1: all weights are a softmax, whatever the weights")
    return Answer(None, "operations do not show which weights there are")


def measure(subject: Subject, trials: int, seed: int) -> str:
    """How far row sums are apart, and how far they move with X, in the best draw."""
    best = row_sums(subject, trials, seed)
    if best is None:
        return "no attention matrix was seen"
    return (
        f"measured: row sums at least {best[0]:.2g} apart, moving by {best[1]:.2g} with X"
    )


def row_sums(subject: Subject, trials: int, seed: int) -> tuple[float, float] | None:
    """The least distance of two row sums, and how far they move; in the best draw."""
    X, Y = np.random.default_rng(seed).standard_normal(
        (2, subject.seq_len, subject.d_model)
    )
    best: tuple[float, float] | None = None
    for trial in subject.trials(trials, seed):
        for A, again in zip(trial.matrices(X), trial.matrices(Y), strict=True):
            sums = np.sort(A.sum(axis=-1), axis=-1)
            apart = float(np.diff(sums, axis=-1).min(axis=-1).max())
            moved = float(np.abs(A.sum(axis=-1) - again.sum(axis=-1)).max())
            best = max(best or (0.0, 0.0), (apart, moved))
    return best


RULE = Rule(
    "EF005",
    "position-aware",
    "condition",
    __doc__,
    Citation(LUO2022, "Theorem 3"),
    by_structure,
    by_operations,
    measure=measure,
)
