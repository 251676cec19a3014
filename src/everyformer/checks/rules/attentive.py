"""EF004: the attentive condition.

What it checks:
    For any u and c there are weights such that A(X) = softmax((X u - c 1)(X u)^T) for all
    X. The paper prints c on the side of the keys, where it cancels in a softmax over rows;
    the proof needs it on the side of the queries, and that is what is asked here.

Why it matters:
    It is the first condition of Theorem 3: with it a head finds the largest or the smallest
    token, depending on the side of c a token is on.

Satisfied by:
    Softmax attention with a bias of the query (or DeBERTa's and Transformer-XL's terms of
    the key alone), if relative biases can be learnt to vanish.

Violated by:
    A causal mask: row 1 sees one token. No query bias: at x_i = 0 the logits -c x_j u
    cannot be made. ALiBi: at X = 0 the rows must be uniform and are not.

Source:
    Luo et al. 2022, Theorem 3.
"""

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from everyformer.checks.calling import call
from everyformer.checks.following.walk import Followed
from everyformer.checks.mixing import mixing_matrices
from everyformer.checks.rule import Answer, Rule
from everyformer.checks.rules import causal
from everyformer.checks.subject import Subject
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import LUO2022, Citation, implements

FIT_STEPS = 50
FIT_INPUTS = 4
FIT_NUMBERS = 2**23
"""Numbers that a fit keeps of its earlier steps: with many weights there are fewer."""


@implements(LUO2022, "Theorem 3")
def by_structure(spec: AttentionSpec, n: int) -> Answer:
    """W_Q = W_K = u, query bias -c, B = 0, C = 1."""
    if spec.mixing != "attention":
        return Answer(False, "the weights are the same for all X")
    if spec.causal:
        return Answer(False, "row 1 of A is (1, 0, .., 0) whatever the weights")
    if not spec.normalised:
        return Answer(None, "without a denominator A is not a softmax: nothing is proved")
    if spec.fixed_bias:
        return Answer(False, "at X = 0 the fixed bias makes rows that are not uniform")
    if spec.special_token:
        return Answer(None, "the special token always has a weight; not covered")
    if not spec.content:
        return Answer(False, "the logits are the same for all X: their scale is 0")
    if not spec.query_bias and spec.absolute:
        return Answer(None, "no query bias; positions might stand in for it")
    if not spec.query_bias:
        return Answer(False, "at x_i = 0 the logits are constant: no query bias")
    if spec.rotary:
        return Answer(None, "queries and keys are rotated; not covered by the theorem")
    if spec.fixed:
        return Answer(None, f"these are not free: {', '.join(spec.fixed)}")
    return Answer(True, "W_Q = W_K = u, query bias -c, relative biases 0, gains 1")


def by_operations(followed: Followed) -> Answer:
    """The operations alone do not show which weights there are."""
    if causal.by_operations(followed).holds:
        return Answer(False, "row 1 of A is (1, 0, .., 0) whatever the weights")
    return Answer(None, "operations do not show which weights there are")


def measure(subject: Subject, trials: int, seed: int) -> str:
    """How close the first attention matrix comes to the form, its weights fitted to it."""
    module = copy.deepcopy(subject.redrawn(seed).module)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    if not weights:
        return "there are no weights to fit"
    try:
        worst = _fitted(subject, module, weights, seed)
    except Exception as error:  # whatever a user's module does
        first = (str(error).strip().splitlines() or [""])[0]
        return f"weights could not be fitted ({type(error).__name__}: {first[:80]})"
    if worst is None:
        return "no attention matrix was seen that weights could be fitted to"
    return f"measured: fitted to one u and c, A differs from the form by {worst:.2g}"


def _fitted(
    subject: Subject, module: nn.Module, weights: list[nn.Parameter], seed: int
) -> float | None:
    """The largest difference left, on inputs that were not fitted to; None if unseen.

    Weights that have no part in the first matrix stay as they are.
    """
    n, d = subject.seq_len, subject.d_model
    rng = np.random.default_rng(seed)
    u = torch.from_numpy(rng.standard_normal(d) / d**0.5)
    inputs = torch.from_numpy(rng.standard_normal((2, FIT_INPUTS, 1, n, d)))
    feed = partial(call, layout=subject.reading.layout)

    def distance(x: torch.Tensor) -> torch.Tensor | None:
        found = mixing_matrices(module, x.clone(), feed, first=True)
        seen = [A for A in found if A.requires_grad]
        return seen[0][0] - attentive_form(x[0], u, 0.5) if seen else None

    first = distance(inputs[0, 0])
    if first is None:
        return None
    slopes: Any = torch.autograd.grad(first.square().sum(), weights, allow_unused=True)
    used = [
        weight for weight, slope in zip(weights, slopes, strict=True) if slope is not None
    ]
    if not used:
        return None
    numbers = sum(weight.numel() for weight in used)
    steps = max(5, min(FIT_STEPS, FIT_NUMBERS // numbers))
    optimiser = torch.optim.LBFGS(
        used,
        max_iter=steps,
        max_eval=2 * steps,
        history_size=steps,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        parts = [distance(x) for x in inputs[0]]
        total = torch.stack([part.square().sum() for part in parts if part is not None])
        total.sum().backward()
        return total.sum()

    optimiser.step(loss)
    parts = [distance(x) for x in inputs[1]]
    return max(float(part.detach().abs().max()) for part in parts if part is not None)


def attentive_form(X: torch.Tensor, u: torch.Tensor, c: float) -> torch.Tensor:
    """softmax((X u - c 1)(X u)^T), c on the side of the queries."""
    ids = X @ u
    return torch.softmax((ids - c)[:, None] * ids[None, :], dim=-1)


RULE = Rule(
    "EF004",
    "attentive",
    "condition",
    __doc__,
    Citation(LUO2022, "Theorem 3"),
    by_structure,
    by_operations,
    measure=measure,
)
