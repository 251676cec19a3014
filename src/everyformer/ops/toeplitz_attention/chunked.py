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

from everyformer.ops.dropping import kept
from everyformer.ops.toeplitz_attention.operands import HIDES, Incoming, Operands
from everyformer.ops.toeplitz_attention.packing import bounds

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
        self.x = x
        self.dtype = torch.promote_types(x.q.dtype, torch.float32)
        self.batch, self.heads, self.n_q = x.q.shape[:3]
        self.n_k = x.k.shape[-2]
        self.pairs = self.batch * self.heads
        self.q = self.rows(x.q) * x.scale  # [pairs, n_q, d]
        self.k = self.rows(x.k).flip(1)  # [pairs of keys, n_k, d]
        self.v = self.rows(x.v).flip(1)
        self.gain = None if x.gain is None else self.windows(self.per_pair(x.gain))
        bias = x.bias
        if x.causal:
            # The mask is Toeplitz itself: -inf at the offsets below -x.offset.
            bias = x.q.new_zeros(1, self.n_q + self.n_k - 1) if bias is None else bias
            future = self.per_pair(bias)
            future[:, : max(0, self.n_k - 1 - x.offset)] = -math.inf
            self.bias = self.windows(future)
        else:
            self.bias = None if bias is None else self.windows(self.per_pair(bias))
        self.padding = None
        if x.key_padding is not None:
            padding = x.key_padding.flip(1).repeat_interleave(self.heads, 0)
            self.padding = padding[:, None]  # [pairs, 1, n_k]
        mask = x.attn_mask
        self.mask = None if mask is None else mask[(None,) * (4 - mask.dim())]
        self.bounds = None
        if x.sequences is not None:
            self.bounds = bounds(x.sequences, self.n_q)
        rows = min(CHUNK, self.n_q)
        self.together = min(max(1, STEP_ENTRIES // (rows * self.n_k)), max(1, self.pairs))
        self.step_shape = (self.together, rows, self.n_k)

    def rows(self, x: Tensor) -> Tensor:
        """(b, h, n, ..) as (pairs, n, ..) in the working dtype."""
        return x.to(self.dtype).flatten(0, 1)

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
                yield _Step(
                    slice(pair, min(pair + self.together, self.pairs)),
                    slice(row, end),
                    self._turned(*self._seen(row, end)),
                )

    def _seen(self, row: int, end: int) -> tuple[int, int]:
        """The keys between which all lie that the queries from row to end see."""
        first, last = 0, self.n_k
        if self.x.causal:
            last = min(last, end + self.x.offset)
        if self.bounds is not None:
            first = int(self.bounds[0][row:end].amin())
            last = min(last, int(self.bounds[1][row:end].amax()))
        return first, last

    def _turned(self, first: int, last: int) -> slice:
        """The turned keys of these; at least one, which is hidden if there is none."""
        begin = min(max(0, self.n_k - last), self.n_k - 1)
        return slice(begin, max(begin + 1, self.n_k - first))

    def logits(self, step: _Step, scratch: Tensor) -> Tensor:
        """The logits of a step, written into scratch memory."""
        q, k = self.q[step.pairs, step.rows], self.keys(self.k, step)
        logits = _part(scratch, (q.shape[0], q.shape[1], k.shape[1]))
        if self.bias is None:
            torch.bmm(q, k.mT, out=logits)
        else:
            torch.baddbmm(self.bias[step], q, k.mT, out=logits)
        if self.mask is not None:
            part = self._mask_of(self.mask, step)
            if part.dtype == torch.bool:
                logits.masked_fill_(~part, -math.inf)
            else:
                logits.add_(part.to(self.dtype)).masked_fill_(part <= HIDES, -math.inf)
        if self.padding is not None:
            logits.masked_fill_(self.padding[step.pairs, :, step.keys], -math.inf)
        if self.bounds is not None:
            begin, end = (y[step.rows, None] for y in self.bounds)
            keys = self._places(step)
            logits.masked_fill_((keys < begin) | (keys >= end), -math.inf)
        return logits

    def keys(self, x: Tensor, step: _Step) -> Tensor:
        """Turned keys or values of a step, for each of its pairs."""
        if self.x.group == 1:
            return x[step.pairs, step.keys]
        return x[:, step.keys][self._heads_of_keys(step)]

    def add(self, total: Tensor, step: _Step, a: Tensor, b: Tensor) -> None:
        """Add aᵀ b to the gradient of keys or values; heads of a group in their order."""
        if self.x.group == 1:
            total[step.pairs, step.keys].baddbmm_(a.mT, b)
        else:
            part = torch.bmm(a.mT, b)
            total[:, step.keys].index_add_(0, self._heads_of_keys(step), part)

    def kept(self, step: _Step) -> Tensor | None:
        """What the weights of a step are multiplied by, if some are dropped."""
        if self.x.dropout == 0.0 or self.x.seed is None:
            return None
        pairs = torch.arange(self.pairs)[step.pairs, None, None]
        queries = torch.arange(self.n_q)[step.rows, None]
        return kept(
            self.x.seed, pairs // self.heads, pairs % self.heads, queries,
            self._places(step), self.x.dropout, self.dtype,
        )  # fmt: skip

    def _heads_of_keys(self, step: _Step) -> Tensor:
        return torch.arange(self.pairs)[step.pairs] // self.x.group

    def _places(self, step: _Step) -> Tensor:
        """The keys of a step as they were before they were turned."""
        return self.n_k - 1 - torch.arange(self.n_k)[step.keys]

    def _mask_of(self, mask: Tensor, step: _Step) -> Tensor:
        """That of a step: (pairs or 1, rows or 1, keys or 1)."""
        rows = step.rows if mask.shape[2] > 1 else slice(0, 1)
        if mask.shape[3] > 1:
            mask = mask[..., self.n_k - step.keys.stop : self.n_k - step.keys.start]
        pairs = torch.arange(self.pairs)[step.pairs]
        if mask.shape[0] == mask.shape[1] == 1:
            pairs = pairs[:1] * 0
        batch = (pairs // self.heads).clamp(max=mask.shape[0] - 1)
        head = (pairs % self.heads).clamp(max=mask.shape[1] - 1)
        return mask[:, :, rows][batch, head].flip(-1)

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
        if (factor := problem.kept(step)) is not None:
            weights *= factor
        mixed = torch.bmm(weights, problem.keys(problem.v, step))
        out[here] = mixed.div_(total.masked_fill_(total == 0, 1.0))
    return out.view(x.q.shape).to(x.q.dtype), lse.view(x.q.shape[:-1])


def backward(
    x: Operands, incoming: Incoming
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients with respect to q, k, v, bias and gain, each in the shape of its input.

    P = exp(S - LSE), G = dO Vᵀ ⊙ D, Δ = rowsum(dO ⊙ O), dS = P ⊙ (C ⊙ G - Δ); O and LSE
    are those of `forward`, D is 1 unless weights are dropped. The last two are None if not
    needed, or without such a vector.
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
        here = step.pairs, step.rows
        grad = grad_rows[here]
        # Entry (i, j') belongs to offset index i + j'.
        diagonals = (
            step.pairs,
            slice(step.rows.start + step.keys.start, step.rows.stop + step.keys.stop - 1),
        )
        weights = problem.logits(step, scratch_weights).sub_(lse[here]).exp_()  # P
        g = _part(scratch_g, weights.shape)
        torch.bmm(grad, problem.keys(problem.v, step).mT, out=g)
        if (factor := problem.kept(step)) is not None:
            g *= factor
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
        if factor is not None:
            weights *= factor
        problem.add(dv, step, weights, grad)
        problem.add(dk, step, ds, problem.q[here])
        dq[here] = torch.bmm(ds, problem.keys(problem.k, step))
    return (
        dq.mul_(x.scale).view(x.q.shape).to(x.q.dtype),
        dk.flip(1).view(x.k.shape).to(x.k.dtype),
        dv.flip(1).view(x.v.shape).to(x.v.dtype),
        None if dbias is None or bias is None else problem.per_head(dbias, bias),
        None if dgain is None or gain is None else problem.per_head(dgain, gain),
    )
