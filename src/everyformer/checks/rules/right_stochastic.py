"""EF002: the rows of every attention matrix sum to 1.

What it checks:
    A(X) 1 = 1 for all weights and inputs, A the matrix that multiplies the values.

Why it matters:
    It is what makes equal tokens stay equal (EF003), whatever is added to the logits.

Satisfied by:
    Softmax, with any bias before it and any mask that leaves a key: T5, ALiBi, rotary,
    Shaw on the key side, DeBERTa, Transformer-XL, Swin, Graphormer.

Violated by:
    URPE: the gain after the softmax. Attention without a denominator. The counterexample
    is an X with the row sums measured.

Source:
    Luo et al. 2022, proof of Theorem 2.
"""

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, any_tokens
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import LUO2022, Citation


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """Softmax, and nothing after it."""
    if spec.mixing == "average":
        return Answer(True, "all weights are 1/n")
    if spec.mixing == "offsets" and spec.filter_length == 1:
        return Answer(None, "a filter of one number may be 1")
    if spec.mixing != "attention":
        return Answer(False, "sums over tokens have weights of any size, or lose some")
    if spec.gain:
        return Answer(False, "the weights are multiplied by a gain after the softmax")
    if not spec.normalised:
        return Answer(False, "the weights are not divided by their sum")
    return Answer(True, "weights are a softmax: positive, with sum 1")


def by_operations(followed: Followed) -> Answer:
    """Every sum over tokens has weights with sum 1."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    if followed.output.means:
        return Answer(True, "every sum over tokens has softmax weights")
    return Answer(None, "some sum over tokens may have any weights")


def violation(trial: Trial, X: np.ndarray) -> float | None:
    """The largest |A 1 - 1|, of the matrices that are seen at work."""
    matrices = trial.matrices(X)
    if not matrices:
        return None
    return max(float(np.abs(A.sum(axis=-1) - 1).max()) for A in matrices)


RULE = Rule(
    "EF002",
    "right-stochastic",
    "measure",
    __doc__,
    Citation(LUO2022, "Theorem 2"),
    by_structure,
    by_operations,
    Search(any_tokens, violation),
)
