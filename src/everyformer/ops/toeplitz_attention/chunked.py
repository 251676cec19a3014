"""Forward and backward of Toeplitz attention on the CPU, 128 queries at a time.

The keys are turned round once, j' = n_k - 1 - j. Then the index i - j + n_k - 1 of `bias`
and `gain` is i + j': the Toeplitz matrix becomes a sliding window over the vector, a view
that costs no memory, and its diagonals become the antidiagonals i + j' = const, which a
view with another row length turns into columns. Nothing of size n_q x n_k is ever stored.
Without autograd; the derivation is in README.md.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.toeplitz_attention.operands import Incoming, Operands

CHUNK = 128
"""Queries per step."""

STEP_ENTRIES = 2**20
"""Weights per step, if heads are short enough to be taken together (4 MB in float32)."""


class _Step(NamedTuple):
    """One step: these (batch, head) pairs, these queries, these turned keys."""

    pairs: slice
    rows: slice
    keys: slice


class _Problem:
    """The inputs in the working dtype, one matrix per (batch, head) pair, keys turned."""

    def __init__(self, x: Operands) -> None:
        q, k, v, bias, gain, key_padding, causal, scale = x
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        self.batch, self.heads, self.n_q = q.shape[:3]
        self.n_k = k.shape[-2]
        self.pairs = self.batch * self.heads
        self.causal = causal
        self.q = self.rows(q) * scale  # [pairs, n_q, d]
        self.k = self.rows(k).flip(1)  # [pairs, n_k, d]
        self.v = self.rows(v).flip(1)
        self.gain = None if gain is None else self.windows(self.per_pair(gain))
        if causal:
            # The mask is Toeplitz itself: -inf at the negative offsets.
            bias = q.new_zeros(1, self.n_q + self.n_k - 1) if bias is None else bias
            future = self.per_pair(bias)
            future[:, : self.n_k - 1] = -math.inf
            self.bias = self.windows(future)
        else:
            self.bias = None if bias is None else self.windows(self.per_pair(bias))
        self.padding = None
        if key_padding is not None:
            hidden = torch.zeros_like(key_padding, dtype=self.dtype)
            hidden = hidden.masked_fill_(key_padding, -math.inf).flip(1)
            self.padding = hidden.repeat_interleave(self.heads, 0)[
                :, None
            ]  # [pairs, 1, n_k]
        rows = min(CHUNK, self.n_q)
        self.together = min(max(1, STEP_ENTRIES // (rows * self.n_k)), max(1, self.pairs))
        self.step_shape = (self.together, rows, self.n_k)

    def rows(self, x: Tensor) -> Tensor:
        """(b, h, n, d) as (pairs, n, d) in the working dtype."""
        return x.to(self.dtype).reshape(self.pairs, *x.shape[2:])

    def per_pair(self, vector: Tensor) -> Tensor:
        """A copy of the vector for every (batch, head) pair."""
        return vector.to(self.dtype).expand(self.heads, -1).repeat(self.batch, 1)

    def windows(self, vector: Tensor) -> Tensor:
        """The view [pairs, n_q, n_k] whose entry (i, j') is vector[i + j']."""
        return vector.unfold(1, self.n_k, 1)

    def steps(self) -> Iterator[_Step]:
        """All steps in a fixed order, so that sums have the same bits on every run."""
        for pair in range(0, self.pairs, self.together):
            for row in range(0, self.n_q, CHUNK):
                end = min(row + CHUNK, self.n_q)
                # Causal: the last query of the step sees the turned keys from n_k - end on.
                key = max(0, self.n_k - end) if self.causal else 0
                yield _Step(
                    slice(pair, min(pair + self.together, self.pairs)),
                    slice(row, end),
                    slice(key, self.n_k),
                )

    def logits(self, step: _Step, scratch: Tensor) -> Tensor:
        """The logits of a step, written into scratch memory."""
        q, k = self.q[step.pairs, step.rows], self.k[step.pairs, step.keys]
        logits = _part(scratch, (q.shape[0], q.shape[1], k.shape[1]))
        if self.bias is None:
            torch.bmm(q, k.mT, out=logits)
        else:
            torch.baddbmm(self.bias[step], q, k.mT, out=logits)
        if self.padding is not None:
            logits += self.padding[step.pairs, :, step.keys]
        return logits

    def per_head(self, sums: Tensor, vector: Tensor) -> Tensor:
        """Add the rows of the pairs up to the shape of the vector they belong to."""
        total = sums.view(self.batch, self.heads, -1).sum(0)
        return total.sum_to_size(vector.shape).to(vector.dtype)


def _part(scratch: Tensor, shape: Sequence[int]) -> Tensor:
    return scratch[: math.prod(shape)].view(*shape)


def _skewed(scratch: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Two views of one memory: entry (a, j) of the first is entry (a, a + j) of the second.

    The first has its rows at a distance of rows + keys. Read at a distance that is one
    shorter, each row moves one to the right of the row before. The gaps are zeroed.
    """
    pairs, rows, keys = shape
    width = rows + keys - 1
    memory = _part(scratch, (pairs, rows, width))
    strides = (rows * width, width + 1, 1)
    memory.as_strided((pairs, rows - 1, rows), strides, keys).zero_()
    return memory.as_strided((pairs, rows, keys), strides, 0), memory


def forward(
    x: Operands,
) -> tuple[Float[Tensor, "b h n_q d"], Float[Tensor, "b h n_q"]]:
    """The output and the natural-log LSE of every query (float32, or float64 for float64).

    A query without keys has output 0 and LSE -inf.
    """
    problem = _Problem(x)
    out = problem.q.new_empty(problem.q.shape)  # contiguous, whatever q is
    lse = problem.q.new_empty(problem.pairs, problem.n_q, 1)
    scratch = problem.q.new_empty(math.prod(problem.step_shape))
    for step in problem.steps():
        here = step.pairs, step.rows
        weights = problem.logits(step, scratch)
        largest = weights.amax(-1, keepdim=True)
        largest.masked_fill_(largest == -math.inf, 0.0)
        total = weights.sub_(largest).exp_().sum(-1, keepdim=True)
        lse[here] = largest + total.log()
        if problem.gain is not None:
            weights *= problem.gain[step]
        mixed = torch.bmm(weights, problem.v[step.pairs, step.keys])
        out[here] = mixed.div_(total.masked_fill_(total == 0, 1.0))
    return out.view(x.q.shape).to(x.q.dtype), lse.view(x.q.shape[:-1])


def backward(
    x: Operands, incoming: Incoming
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients with respect to q, k, v, bias and gain, each in the shape of its input.

    P = exp(S - LSE), G = dO Vᵀ, Δ = rowsum(dO ⊙ O), dS = P ⊙ (C ⊙ G - Δ); O and LSE
    are those of `forward`. The last two are None if not needed, or without such a vector.
    """
    problem = _Problem(x)
    grad_rows = problem.rows(incoming.grad_out)
    delta = (grad_rows * problem.rows(incoming.out)).sum(-1, keepdim=True)
    # exp(S - inf) = 0, also for S = -inf: queries without keys get weights 0.
    lse = problem.rows(incoming.lse)[..., None]
    lse = lse.masked_fill(lse == -math.inf, math.inf)
    dq = problem.q.new_empty(problem.q.shape)  # contiguous, whatever q is
    dk, dv = (y.new_zeros(y.shape) for y in (problem.k, problem.v))
    offsets = (problem.pairs, problem.n_q + problem.n_k - 1)
    bias = x.bias if incoming.needs_bias else None
    gain = x.gain if incoming.needs_gain else None
    dbias = None if bias is None else dq.new_zeros(offsets)
    dgain = None if gain is None else dq.new_zeros(offsets)
    pairs, rows, n_k = problem.step_shape
    scratch_weights, scratch_g = (dq.new_empty(pairs * rows * n_k) for _ in range(2))
    scratch_skewed = dq.new_empty(pairs * rows * (rows + n_k - 1))
    for step in problem.steps():
        here, there = (step.pairs, step.rows), (step.pairs, step.keys)
        grad = grad_rows[here]
        # Entry (i, j') belongs to offset index i + j'.
        diagonals = (
            step.pairs,
            slice(step.rows.start + step.keys.start, step.rows.stop + n_k - 1),
        )
        weights = problem.logits(step, scratch_weights).sub_(lse[here]).exp_()  # P
        g = _part(scratch_g, weights.shape)
        torch.bmm(grad, problem.v[there].mT, out=g)
        ds, columns = _skewed(scratch_skewed, weights.shape)
        torch.mul(weights, g, out=ds)
        if dgain is not None:
            dgain[diagonals] += columns.sum(1)
        if problem.gain is not None:
            ds *= problem.gain[step]
        ds.addcmul_(weights, delta[here], value=-1)
        if dbias is not None:
            dbias[diagonals] += columns.sum(1)
        if problem.gain is not None:
            weights *= problem.gain[step]
        dv[there].baddbmm_(weights.mT, grad)
        dk[there].baddbmm_(ds.mT, problem.q[here])
        dq[here] = torch.bmm(ds, problem.k[there])
    return (
        dq.mul_(x.scale).view(x.q.shape).to(x.q.dtype),
        dk.flip(1).view(x.k.shape).to(x.k.dtype),
        dv.flip(1).view(x.v.shape).to(x.v.dtype),
        None if dbias is None or bias is None else problem.per_head(dbias, bias),
        None if dgain is None or gain is None else problem.per_head(dgain, gain),
    )
