"""EF011: the layer is affine.

What it checks:
    g((1 - t) X + t Y) = (1 - t) g(X) + t g(Y) for all X, Y and t, and all weights.

Why it matters:
    Stacks of affine layers are affine. Without feed-forward layers they do not come near
    f(X)_11 = |x_11 - 1/2|: with a function that is affine in X, the mean over all other
    coordinates is affine in x_11; among those, 1/4 is nearest to |x - 1/2| on [0, 1], at
    sqrt(1/48) in L^2 and at 1/4 in the sup norm. With feed-forward layers nothing follows.

Satisfied by:
    Average attention, bi-linear projections, separable convolutions, with skip connections
    and positions or without.

Violated by:
    Softmax attention, whose weights move with the tokens; gated and dynamic convolutions;
    feed-forward layers. The counterexample is an X with g(X) - 2 g(X/2) + g(0) different
    from 0.

Source:
    docs/rules.md, EF011.
"""

import numpy as np

from everyformer.checks.rule import Answer, Rule, Search, any_tokens, relative
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """Weights that do not move with the tokens, and no gate."""
    if spec.mixing != "attention" and not spec.gated:
        return Answer(True, "tokens are added with weights that do not depend on them")
    if spec.fixed:
        return Answer(None, f"these are not free: {', '.join(spec.fixed)}")
    if spec.gated:
        return Answer(False, "tokens are multiplied by a gate that depends on them")
    if not spec.content:
        return Answer(None, "the logits do not depend on the tokens")
    return Answer(False, "the weights of attention depend on the tokens")


def violation(trial: Trial, X: np.ndarray) -> float:
    """The largest entry of g(X) - 2 g(X/2) + g(0)."""
    out = trial.output(X)
    half, zero = trial.output(X / 2), trial.output(np.zeros_like(X))
    return relative(out - 2 * half + zero, out)


RULE = Rule(
    "EF011",
    "affine",
    "measure",
    __doc__,
    "docs/rules.md",
    by_structure,
    search=Search(any_tokens, violation),
)
