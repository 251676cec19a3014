"""EF001: permutations of the tokens commute with the layer.

What it checks:
    g(P X) = P g(X) for every permutation P, all weights and all inputs.

Why it matters:
    Such a network computes permutation equivariant functions alone. Its distance from any
    other function, such as (1, 0, .., 0), is bounded below, also in L^p.

Satisfied by:
    Softmax attention without positions: torch's MultiheadAttention, BERT's layers without
    their embeddings.

Violated by:
    Everything that tells positions apart: relative biases, gains, absolute positions,
    causal masks. The counterexample is an X that is reversed or shifted.

Source:
    Yun et al. 2020, Claim 1.
"""

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, any_tokens, relative
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import YUN2020, Citation


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """Nothing but the tokens enters."""
    if spec.ignores_positions:
        return Answer(True, "nothing tells positions apart, so permutations commute")
    if spec.mixing != "attention":
        return Answer(False, "positions enter the layer")
    if spec.relative_to == "graph" and not (spec.absolute or spec.causal):
        return Answer(
            None, "distances of nodes enter; on a symmetric graph that is nothing"
        )
    if spec.gain and spec.gain_rows is not None and spec.gain_rows < 2:
        return Answer(None, "offsets share the entries of the gain, maybe all of them")
    if n == 2 and not (spec.absolute or spec.causal or spec.value_term):
        return Answer(None, "with two tokens, offsets of either sign may count the same")
    return Answer(False, "positions enter the layer")


def by_operations(followed: Followed) -> Answer:
    """Every operation permutes its result as it permutes its arguments."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    if followed.output.moves == frozenset({1}):
        return Answer(True, "every operation commutes with permutations of the tokens")
    return Answer(None, "some operation may tell positions apart")


def violation(trial: Trial, X: np.ndarray) -> float:
    """The largest entry of g(P X) - P g(X), P a reversal or a cyclic shift."""
    out = trial.output(X)
    return max(
        relative(trial.output(X[::-1]) - out[::-1], out),
        relative(trial.output(np.roll(X, 1, axis=0)) - np.roll(out, 1, axis=0), out),
    )


RULE = Rule(
    "EF001",
    "permutation-equivariant",
    "obstacle",
    __doc__,
    Citation(YUN2020, "Claim 1"),
    by_structure,
    by_operations,
    Search(any_tokens, violation),
)
