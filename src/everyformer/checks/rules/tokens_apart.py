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

from collections.abc import Iterator

import numpy as np
import torch

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, relative
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import YUN2020B, Citation


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """By its mask."""
    if spec.causal:
        return Answer(True, _never(0, n - 1))
    return Answer(False, "every token has a positive weight")


def by_operations(followed: Followed) -> Answer:
    """By the receptive fields of one layer, and of stacks."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    fields = followed.receptive_fields
    if fields is None:
        return Answer(None, "some operation may hear all tokens")
    pair = never_meet(fields)
    if pair is not None:
        return Answer(True, _never(*pair))
    return Answer(None, "connections lead from every token to every other")


def never_meet(fields: torch.Tensor) -> tuple[int, int] | None:
    """The first token k, with the last j, such that no path of fields leads from j to k.

    Example:
        >>> never_meet(torch.tensor([[True, True, False]] * 2 + [[False, True, True]]))
        (0, 2)
        >>> never_meet(torch.tensor([[True, True], [True, True]])) is None
        True
    """
    n = len(fields)
    heard = (fields | torch.eye(n, dtype=torch.bool)).double()
    for _ in range(n.bit_length()):
        heard = ((heard @ heard) > 0).double()
    missing = (heard == 0).nonzero().tolist()
    if not missing:
        return None
    k = missing[0][0]
    return k, max(j for i, j in missing if i == k)


def _never(k: int, j: int) -> str:
    return f"token {k + 1} never hears token {j + 1} (1-based), whatever the depth"


def inputs(rng: np.random.Generator, n: int, d: int) -> Iterator[np.ndarray]:
    """Any tokens."""
    yield rng.standard_normal((n, d))


def violation(trial: Trial, X: np.ndarray) -> float:
    """How strong the weakest link is on the best paths between all tokens.

    A link from j to k is as strong as row k changes when token j becomes 1 - x_j; a path is
    as strong as its weakest link.
    """
    out, n = trial.output(X), len(X)
    strength = np.zeros((n, n))
    for j in range(n):
        moved = X.copy()
        moved[j] = 1 - moved[j]
        after = trial.output(moved)
        strength[:, j] = [relative(after[k] - out[k], out) for k in range(n)]
    np.fill_diagonal(strength, np.inf)
    for between in range(n):
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
    Search(inputs, violation),
)
