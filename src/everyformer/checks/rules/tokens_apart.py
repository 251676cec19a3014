"""EF009: some token never hears some other, whatever the depth.

What it checks:
    There are tokens k and j such that row k of no stack of such layers depends on token j,
    for all weights: no path of connections leads from j to k.

Why it matters:
    Such networks cannot approximate f(X)_k = x_j, in any distance: g(X)_k does not depend
    on x_j.

Satisfied by:
    Causal masks; local attention in separate blocks; the pattern "fixed" when w does not
    divide n; layers that mix no tokens at all.

Violated by:
    Attention over all tokens, and every mask whose graph is strongly connected. The
    counterexample is an X whose tokens are moved, one by one; all pairs then meet.

Source:
    Yun et al. 2020b, Assumption 1.3 fails.
"""

import numpy as np
import torch
from scipy.sparse import csr_array

from everyformer.checks.finding import apart
from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, any_tokens, links
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import YUN2020B, Citation
from everyformer.patterns.receptive_fields import never_meet


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """By its mask, or its filter."""
    if spec.causal:
        return _never(0, n - 1)
    if spec.mixing == "offsets" and spec.filter_length <= 2:
        return _never(n - 1, 0)  # a filter of length 2 has no token on the left
    return Answer(False, "every token has a positive weight")


def by_operations(followed: Followed) -> Answer:
    """By the receptive fields of one layer, and of stacks."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    fields = followed.receptive_fields
    if fields is None:
        return Answer(None, "some operation may hear all tokens")
    pair = _pair(fields)
    if pair is not None:
        return _never(*pair)
    mask = followed.finite_mask
    if mask and mask.fields is not None and (pair := _pair(mask.fields)) is not None:
        why = f"{mask}; with -inf in its place {apart(*pair)}"
        return Answer(None, why, nearly=why)
    return Answer(None, "connections lead from every token to every other")


def _pair(fields: torch.Tensor) -> tuple[int, int] | None:
    """Tokens (k, j), the first of which no path of connections leads to from the second."""
    return never_meet(csr_array(fields.numpy().astype(np.int8)))


def _never(k: int, j: int) -> Answer:
    return Answer(True, apart(k, j), (k, j))


def violation(trial: Trial, X: np.ndarray) -> float:
    """How strong the weakest link is on the best paths between all tokens.

    A path is as strong as its weakest link.
    """
    strength = links(trial, X)
    np.fill_diagonal(strength, np.inf)
    for between in range(len(X)):
        through = np.minimum(strength[:, between, None], strength[None, between])
        strength = np.maximum(strength, through)
    return float(strength.min())


RULE = Rule(
    "EF009",
    "tokens-apart",
    "obstacle",
    __doc__,
    Citation(YUN2020B, "Assumption 1"),
    by_structure,
    by_operations,
    Search(any_tokens, violation),
)
