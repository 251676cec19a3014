"""EF007: zero goes to zero, because biases are missing.

What it checks:
    g(0) = 0 for all weights.

Why it matters:
    No stack of such layers alone, nor one whose feed-forward layers have no biases either,
    comes near the constant function 1 in the sup norm: the error at X = 0 is 1. Where
    feed-forward layers have biases, as is assumed of layers that do not describe theirs,
    nothing follows. The proofs use biases of the query, of the value and of the
    feed-forward layers; the papers do not print them all.

Satisfied by:
    Layers without biases: T5, and attention alone with bias=False.

Violated by:
    Any layer with a bias of the value, the output or the feed-forward layer, and by
    absolute positions. The counterexample is X = 0.

Source:
    docs/rules.md, EF007.
"""

from collections.abc import Iterator

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """No bias, no value term and no position adds anything to 0."""
    sources = {
        "values or outputs have a bias": spec.value_bias,
        "feed-forward layers have biases": spec.feed_forward_bias,
        "relative terms are added to values": spec.value_term,
        "positions are added to the tokens": spec.absolute,
        "a special token is there": spec.special_token,
    }
    found = [source for source, there in sources.items() if there]
    if found:
        return Answer(False, "; ".join(found))
    return Answer(True, "no bias and no position adds anything to zero")


def by_operations(followed: Followed) -> Answer:
    """Every operation maps zero to zero."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    if followed.output.zero:
        return Answer(True, "every operation maps zero to zero: there are no biases")
    return Answer(None, "some operation may add to zero")


def inputs(rng: np.random.Generator, n: int, d: int) -> Iterator[np.ndarray]:
    """X = 0."""
    yield np.zeros((n, d))


def violation(trial: Trial, X: np.ndarray) -> float:
    """The largest entry of g(0)."""
    return float(np.abs(trial.output(X)).max())


RULE = Rule(
    "EF007",
    "zero-to-zero",
    "obstacle",
    __doc__,
    "docs/rules.md",
    by_structure,
    by_operations,
    Search(inputs, violation, lambda X: not X.any()),
)
