"""EF012: on equal tokens the layer is affine.

What it checks:
    If all tokens of X are v, all rows of g(X) are A v + b, for all weights; A and b depend
    on the weights alone.

Why it matters:
    Then nothing works on a token by itself but an affine map, and the same holds for stacks
    of such layers, whatever their depth: a token that hears nothing but itself learns
    nothing that is not linear. Without feed-forward layers they do not come near f(X)_i1 =
    |x_i1 - 1/2| in the sup norm: at X = 1 (t, 0, .., 0) the first column of g(X) is a + b t
    in every row, which is 1/4 away from |t - 1/2| at one of t = 0, 1/2, 1; so the distance
    is at least sqrt(n)/4. Permutations of the tokens commute with this f: it is the
    feed-forward layer that is missing, not positions. With feed-forward layers nothing
    follows. Neither does it in L^p: equal tokens have measure zero, and two tokens that
    differ have a softmax between them, which is not linear. For n = 2, d = 1 one layer
    with enough heads is as near to this f in L^p as you like (docs/mixers.md). Under a
    causal mask the first token hears itself alone: there it is affine for all X, and
    |x_11 - 1/2| is sqrt(1/48) away in L^2.

Satisfied by:
    Softmax attention with any relative encoding of the logits, causal or not, with a skip
    connection or without; average attention.

Violated by:
    Feed-forward layers, norms and gates; attention without a denominator or with a special
    token; what parts equal tokens (EF003): URPE, absolute positions. The counterexample is
    X = 1 v^T with g(X) - 2 g(X/2) + g(0) or g(X) + g(-X) - 2 g(0) different from 0, or with
    rows that differ.

Source:
    docs/rules.md, EF012.
"""

import numpy as np

from everyformer.checks.following.walk import Followed
from everyformer.checks.rule import Answer, Rule, Search, relative
from everyformer.checks.rules import affine, equal_tokens
from everyformer.checks.subject import Trial
from everyformer.model.attention_spec import AttentionSpec


def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """Equal tokens stay equal, and the mean of equal values is that value."""
    bends = {
        "tokens are multiplied by a gate that depends on them": spec.gated,
        "weights without a denominator depend on the tokens": not spec.normalised,
        "a special token is weighed against the others": spec.special_token,
    }
    found = [way for way, there in bends.items() if there]
    if found and (spec.fixed or not (spec.content or spec.gated)):
        return Answer(None, f"{found[0]}, but not with all weights")
    if found:
        return Answer(False, found[0])
    equal = equal_tokens.by_structure(spec, n)
    if not equal.holds:
        return equal
    return Answer(True, "equal tokens stay equal, and their weighted mean is linear")


def by_operations(followed: Followed) -> Answer:
    """The output is uniform along the tokens, and affine in what they all are."""
    if followed.output is None:
        return Answer(None, followed.obstacle)
    if 1 in followed.output.uniform and followed.output.is_affine:
        return Answer(True, "on equal tokens every operation is affine or a mean")
    return Answer(None, "some operation may not be affine on equal tokens")


def violation(trial: Trial, X: np.ndarray) -> float:
    """What is not affine between 0 and X or -X and X, or what parts the rows; the largest.

    A ReLU without a bias is linear on half-lines, and bends between -X and X.
    """
    out, other = trial.output(X), trial.output(-X)
    bend = relative(out + other - 2 * trial.output(np.zeros_like(X)), out)
    return max(bend, affine.violation(trial, X), equal_tokens.violation(trial, X))


RULE = Rule(
    "EF012",
    "affine-on-equal-tokens",
    "measure",
    __doc__,
    "docs/rules.md",
    by_structure,
    by_operations,
    Search(equal_tokens.inputs, violation, lambda X: bool((X[0] == X).all())),
)
