"""EF006: no token sees a later one.

What it checks:
    Row i of g(X) does not depend on tokens i+1 .. n, for all weights.

Why it matters:
    Such a network cannot approximate a function that looks ahead, such as f(X)_1 = x_n, in
    any distance.

Satisfied by:
    Causal masks: decoders, GPT-2.

Violated by:
    Bidirectional attention. The counterexample is an X whose tokens are moved, one by one.

Source:
    Luo et al. 2022, Theorem 3: the attentive condition fails.
"""

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, any_tokens, loudest_links
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import LUO2022, Citation


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """By its mask."""
    if spec.causal:
        return Answer(True, "later tokens are masked")
    if spec.mixing == "offsets":
        alone = spec.filter_length == 1
        why = "a filter of one token" if alone else "the filter reaches to the right"
        return Answer(alone, why)
    return Answer(False, "every token has a positive weight")


def by_operations(followed: Followed) -> Answer:
    """Entry i of the output depends on tokens 1 .. i alone."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    fields = followed.receptive_fields
    if fields is not None and not bool(fields.triu(1).any()):
        return Answer(True, "every operation keeps to the past")
    mask = followed.finite_mask
    if mask and mask.fields is not None and not bool(mask.fields.triu(1).any()):
        why = f"{mask}; with -inf in its place no token would see a later one"
        return Answer(None, why, nearly=why)
    return Answer(None, "some operation may look ahead")


def violation(trial: Trial, X: np.ndarray) -> float:
    """How much rows before j change when token j becomes 1 - x_j, for the worst j."""
    return float(np.triu(loudest_links(trial, X), 1).max())


RULE = Rule(
    "EF006",
    "causal",
    "obstacle",
    __doc__,
    Citation(LUO2022, "Theorem 3"),
    by_structure,
    by_operations,
    Search(any_tokens, violation),
)
