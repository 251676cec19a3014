"""EF010: reversing the tokens reverses the output.

What it checks:
    g(R X) = R g(X) for all weights and all inputs, where R turns the order of the tokens
    round.

Why it matters:
    Feed-forward layers commute with R too, and so does every stack. For f = (1, 0, .., 0)
    in the first coordinate and any g of such a network, on a domain that R maps to itself,
    |f - g(X)|^2 + |f - g(R X)|^2 = |f - g(X)|^2 + |R f - g(X)|^2 >= |f - R f|^2 / 2 = 1. So
    the distance from f is at least sqrt(1/2), in L^2 over the unit cube and in the sup
    norm.

Satisfied by:
    Attention whose biases and gains depend on |i - j| alone: ALiBi without a causal mask,
    Graphormer on a path, gains with one bucket for both directions; and everything that
    commutes with all permutations (EF001).

Violated by:
    Entries for i - j and j - i that can differ: URPE, T5, rotary encodings; absolute
    positions, causal masks. The counterexample is an X that is reversed.

Source:
    docs/rules.md, EF010.
"""

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, any_tokens, relative
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """Nothing but the tokens enters, or something that tells the ends apart."""
    if spec.ignores_positions:
        return Answer(True, "nothing tells positions apart, nor their order")
    if spec.absolute:
        return Answer(False, "positions are added to the tokens")
    if spec.causal:
        return Answer(False, "the first token sees itself alone, the last one sees all")
    if spec.mixing != "attention":
        return Answer(False, "weights for i, j and for their mirror image are free")
    return Answer(None, "entries of offsets i - j and j - i may be the same")


def by_operations(followed: Followed) -> Answer:
    """Every operation reverses its result with its arguments."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    if followed.mirrored:
        return Answer(True, "every operation commutes with the reversal of the tokens")
    return Answer(None, "some operation may tell the order of the tokens")


def violation(trial: Trial, X: np.ndarray) -> float:
    """The largest entry of g(R X) - R g(X)."""
    out = trial.output(X)
    return relative(trial.output(X[::-1]) - out[::-1], out)


RULE = Rule(
    "EF010",
    "reversal-equivariant",
    "obstacle",
    __doc__,
    "docs/rules.md",
    by_structure,
    by_operations,
    Search(any_tokens, violation),
)
