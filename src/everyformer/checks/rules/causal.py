"""EF006: no token sees a later one.

What it checks:
    Row i of g(X) does not depend on tokens i+1 .. n, for all weights.

Why it matters:
    Such a network cannot approximate a function that looks ahead, such as f(X)_1 = x_n, in
    any distance.

Satisfied by:
    Causal masks: decoders, GPT-2.

Violated by:
    Bidirectional attention. The counterexample is an X whose last token is moved.

Source:
    Luo et al. 2022, Theorem 3: the attentive condition fails.
"""

from collections.abc import Iterator

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, relative
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import LUO2022, Citation


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """By its mask."""
    if spec.causal:
        return Answer(True, "later tokens are masked")
    return Answer(False, "every token has a positive weight")


def by_operations(followed: Followed) -> Answer:
    """Entry i of the output depends on tokens 1 .. i alone."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    if followed.output.past == 1:
        return Answer(True, "every operation keeps to the past")
    return Answer(None, "some operation may look ahead")


def inputs(rng: np.random.Generator, n: int, d: int) -> Iterator[np.ndarray]:
    """Any tokens."""
    yield rng.standard_normal((n, d))


def violation(trial: Trial, X: np.ndarray) -> float:
    """How much rows 1 .. n-1 change when token n changes its sign and moves by 1."""
    out, moved = trial.output(X), X.copy()
    moved[-1] = 1 - moved[-1]
    return relative((trial.output(moved) - out)[:-1], out)


RULE = Rule(
    "EF006",
    "causal",
    "obstacle",
    __doc__,
    Citation(LUO2022, "Theorem 3"),
    by_structure,
    by_operations,
    Search(inputs, violation),
)
