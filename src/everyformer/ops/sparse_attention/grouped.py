"""Forward and backward in plain torch, by groups of small dense problems.

Every piece is walked as groups of rectangles: r queries, c keys and a mask that hides pairs
which do not count. Patterns without structure have r = 1. Cost and memory follow the
number of pairs; nothing of size n x n is stored, but for short sequences (`Masked`). For
the CPU, float64 and large heads.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.dropping import kept
from everyformer.ops.sparse_attention.operands import Incoming, Operands
from everyformer.ops.sparse_attention.products import product
from everyformer.ops.sparse_attention.steps import Step, Steps

STEP_NUMBERS = 2**22
"""Numbers that one step works on: 16 MB in float32."""

NEAR_NUMBERS = 2**17
"""Numbers of one operand, or pairs of tokens if all are in one step, that stay near the
processor from step to step: half a megabyte."""

LN_2 = math.log(2)


class _Problem:
    """Some (batch, head) pairs in the working dtype, one matrix each; row n for nobody.

    Logits are to base 2: powers of 2 are four times as fast as those of e, and stay so
    where they vanish, as those of hidden pairs do.
    """

    def __init__(
        self, x: Operands, given: Sequence[Tensor], some: slice, *, nobody: bool
    ) -> None:
        self.x, self.some, self.nobody = x, some, nobody
        self.dtype, self.heads, self.n = _dtype(x), x.q.shape[1], x.q.shape[2]
        self.scale = x.scale / LN_2
        self.q, self.k, self.v = (self.rows(y) for y in given)
        self.bound = None
        if x.key_padding is not None:
            of_pairs = torch.arange(some.start, some.stop, device=x.q.device) // self.heads
            padded = x.key_padding[of_pairs, :, None]
            bound = self.q.new_full(padded.shape, math.inf).masked_fill_(padded, -math.inf)
            self.bound = self.filled(bound)

    def rows(self, x: Float[Tensor, "all n d"]) -> Float[Tensor, "pairs n_or_more d"]:
        """Those of all (batch, head) pairs, contiguous and in the working dtype."""
        return self.filled(x[self.some].to(self.dtype).contiguous())

    def filled(self, x: Float[Tensor, "pairs n d"]) -> Float[Tensor, "pairs n_or_more d"]:
        """With a row of zeros for nobody."""
        return torch.nn.functional.pad(x, (0, 0, 0, 1)) if self.nobody else x

    def begun(self, whole: Float[Tensor, "b h n d"]) -> Float[Tensor, "pairs n_or_more d"]:
        """Where results are written: the zeros of the whole itself if it can be."""
        mine = whole.flatten(0, 1)[self.some]
        if self.nobody or whole.dtype != self.dtype:
            return mine.new_zeros((*self.q.shape[:2], mine.shape[2]), dtype=self.dtype)
        return mine

    def finish(self, whole: Float[Tensor, "b h n d"], mine: Tensor) -> None:
        """Copy results that were written elsewhere."""
        if self.nobody or whole.dtype != self.dtype:
            whole.flatten(0, 1)[self.some] = mine[:, : self.n]

    def logits(self, step: Step, q: Tensor, k: Tensor) -> Float[Tensor, "pg r c"]:
        """q k^T, with -inf at pairs that do not count."""
        logits = product(q, k.mT, self.scale)
        if step.bound is not None:
            step.bound.apply(logits.view(len(self.q), -1, *logits.shape[1:]))
        if self.bound is not None:
            torch.minimum(logits, step.keys.of(self.bound).mT, out=logits)
        return logits

    def kept(self, step: Step) -> Float[Tensor, "pg r c"] | None:
        """What weights are multiplied by, 0 or 1 / (1 - dropout); None if all are kept."""
        if self.x.seed is None or self.x.dropout == 0.0:
            return None
        device = self.q.device
        pair = torch.arange(self.some.start, self.some.stop, device=device)
        pair = pair[:, None, None, None]
        queries, keys = (places.tokens(device) for places in (step.queries, step.keys))
        of_pairs = queries[:, :, None], keys[:, None, :]
        where = (pair // self.heads, pair % self.heads, *of_pairs)
        return kept(self.x.seed, *where, self.x.dropout, self.dtype).flatten(0, 1)


def _dtype(x: Operands) -> torch.dtype:
    """The working dtype."""
    return torch.promote_types(x.q.dtype, torch.float32)


def _problems(x: Operands, steps: Steps) -> Iterator[tuple[_Problem, Iterable[Step]]]:
    """A few (batch, head) pairs at a time, through all steps.

    Steps that are made anew each time are made for as many pairs as possible.
    """
    given = _apart(*x[:3])
    pairs, n, d = given[0].shape
    shape = pairs, d, _dtype(x), x.q.device
    like = x.q.new_empty((), dtype=_dtype(x))
    first = 0
    while first < pairs:
        large = shape in steps.large
        most = STEP_NUMBERS if large else min(NEAR_NUMBERS, STEP_NUMBERS)
        together = min(pairs, max(1, most // (n * (max(d, n) if steps.square else d))))
        room = max(1, STEP_NUMBERS // (together * d))
        found, nobody = steps.of(shape, room, like)
        if (shape in steps.large) != large:  # as it has just turned out
            continue
        some = slice(first, min(first + together, pairs))
        yield _Problem(x, given, some, nobody=nobody), found
        first = some.stop


def _apart(*tensors: Tensor) -> list[Float[Tensor, "pairs n _"]]:
    """One matrix for each (batch, head) pair; copied at once if it must be."""
    return [y.flatten(0, 1) for y in tensors]


def forward(
    x: Operands, steps: Steps
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n"]]:
    """The output and the natural-log LSE of every query (float32, or float64 for float64).

    A query without keys has output 0 and LSE -inf.
    """
    out = x.q.new_zeros(x.q.shape)
    lse = x.q.new_empty((*x.q.shape[:-1], 1), dtype=_dtype(x))
    for problem, found in _problems(x, steps):
        mine, logs = problem.begun(out), problem.begun(lse).fill_(-math.inf)
        for step in found:
            _attend(problem, step, mine, logs)
        problem.finish(out, mine)
        problem.finish(lse, logs)
    return out, lse[..., 0].mul_(LN_2)


def _attend(problem: _Problem, step: Step, out: Tensor, lse: Tensor) -> None:
    """Join output and LSE of one step to those of the steps before, all to base 2."""
    rows, keys = step.queries, step.keys
    logits = problem.logits(step, rows.of(problem.q), keys.of(problem.k))
    # What is never -inf can be subtracted from -inf.
    least = torch.finfo(problem.dtype).min
    top = logits.amax(-1, keepdim=True).clamp_(min=least)
    weights = logits.sub_(top).exp2_()
    sums = weights.sum(-1, keepdim=True)
    factor = problem.kept(step)
    if factor is not None:
        weights.mul_(factor)
    mixed = product(weights, keys.of(problem.v))
    logs = sums.log2().add_(top)
    if step.fresh:
        mixed.div_(sums.clamp_(min=1.0))  # less only without keys
    else:
        before = rows.of(lse)
        logs = torch.logaddexp2(before, logs)
        shift = logs.clamp(min=least)
        mixed.mul_(top.sub_(shift).exp2_())
        mixed.addcmul_(rows.of(out), (before - shift).exp2_())
    rows.put(out, mixed)
    rows.put(lse, logs)


def backward(
    x: Operands, incoming: Incoming, steps: Steps
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v: P = exp(S - LSE), dS = P (D dO V^T - dO . O).

    D is what dropping multiplies the weights by.
    """
    dq, dk, dv = (y.new_zeros(y.shape) for y in x[:3])
    given = _apart(incoming.grad_out, incoming.out, incoming.lse[..., None])
    for problem, found in _problems(x, steps):
        grads, out, lse = map(problem.rows, given)
        # exp(S - inf) = 0, also for S = -inf: queries without keys get weights 0.
        total = (lse / LN_2).masked_fill_(lse == -math.inf, math.inf)
        total[:, problem.n :] = math.inf
        mine = problem.begun(dq), problem.begun(dk), problem.begun(dv)
        for step in found:
            _add_gradients(problem, step, (grads, out, total), mine)
        for whole, part in zip((dq, dk, dv), mine, strict=True):
            problem.finish(whole, part)
    return dq, dk, dv


def _add_gradients(
    problem: _Problem,
    step: Step,
    given: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Those of one step, of the gradient of the output, the output, the LSE to base 2."""
    rows, keys = step.queries, step.keys
    q, (do, out, total) = rows.of(problem.q), (rows.of(y) for y in given)
    k, v = keys.of(problem.k), keys.of(problem.v)
    weights = problem.logits(step, q, k).sub_(total).exp2_()
    factor, ds = problem.kept(step), product(do, v.mT)
    if factor is not None:
        ds.mul_(factor)
    ds.sub_((do * out).sum(-1, keepdim=True)).mul_(weights)
    if factor is not None:
        weights.mul_(factor)
    dq, dk, dv = results
    rows.add(dq, ds, k, problem.x.scale, fresh=step.fresh)
    keys.add(dk, ds.mT, q, problem.x.scale, fresh=False)
    keys.add(dv, weights.mT, do, 1.0, fresh=False)
