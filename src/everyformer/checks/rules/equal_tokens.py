"""EF003: equal tokens stay equal.

What it checks:
    If all tokens of X are equal, so are all rows of g(X), for all weights.

Why it matters:
    No stack of such layers comes near the constant function T with T_11 = a, else 0: at
    X = 1 x^T every output 1 y^T has ||T - 1 y^T||_F >= a sqrt((n-1)/n). So the network is
    not universal in the sup norm. Constant sequences have measure zero: nothing follows for
    L^p.

Satisfied by:
    Softmax attention with any relative encoding of the logits, causal or not. The ways
    out: a gain after the softmax (URPE), relative terms in the values (Shaw), absolute
    positions, one special token together with an encoding or a causal mask, no denominator.

Violated by:
    URPE, value-side Shaw, absolute positions. The counterexample is X = 1 x^T.

Source:
    Luo et al. 2022, Theorem 2.
"""

from collections.abc import Iterator

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, relative
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import LUO2022, Citation, implements


@implements(LUO2022, "Theorem 2")
def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """Means of equal values are that value."""
    if spec.ignores_positions:
        return Answer(True, "nothing tells positions apart")
    if spec.mixing != "attention" and not spec.absolute:
        return Answer(False, "tokens are added with weights that depend on the position")
    ways_out = {
        "a gain after the softmax": spec.gain,
        "relative terms in the values": spec.value_term,
        "absolute positions": spec.absolute,
        "a special token": spec.special_token,
        "no denominator": not spec.normalised,
    }
    open_ = [way for way, taken in ways_out.items() if taken]
    if open_ == ["a gain after the softmax"] and spec.gain_rows in (0, 1):
        return Answer(None, "offsets share the entries of the gain, maybe all of them")
    if open_ and spec.relative_to == "graph" and not spec.absolute:
        return Answer(None, f"by {', '.join(open_)} it may part them, on some graphs")
    if open_:
        return Answer(False, f"it has a way out: {', '.join(open_)}")
    return Answer(
        True, "rows of weights sum to 1, so the mean of equal values is that value"
    )


def by_operations(followed: Followed) -> Answer:
    """The output is uniform along the tokens."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    if 1 in followed.output.uniform:
        return Answer(True, "every operation maps equal tokens to equal tokens")
    return Answer(None, "some operation may tell equal tokens apart")


def inputs(rng: np.random.Generator, n: int, d: int) -> Iterator[np.ndarray]:
    """Equal tokens."""
    yield np.tile(rng.standard_normal(d), (n, 1))


def violation(trial: Trial, X: np.ndarray) -> float:
    """The largest difference between rows of the output."""
    out = trial.output(X)
    return relative(out.max(axis=0) - out.min(axis=0), out)


RULE = Rule(
    "EF003",
    "equal-tokens-stay-equal",
    "obstacle",
    __doc__,
    Citation(LUO2022, "Theorem 2"),
    by_structure,
    by_operations,
    Search(inputs, violation, lambda X: bool((X[0] == X).all())),
)
