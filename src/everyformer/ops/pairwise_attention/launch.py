"""Launch the Triton kernels: shapes, tile sizes, buffers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from everyformer.ops.dropping import growth, threshold
from everyformer.ops.kernel_tiles import LOG2_E
from everyformer.ops.launching import (
    LARGEST_TILE,
    Tiles,
    addressable,
    ceil_div,
    empty_like,
    launch,
    power_of_two,
)
from everyformer.ops.pairwise_attention import kernels as jitted
from everyformer.ops.pairwise_attention.operands import Gradients, Incoming, Operands
from everyformer.ops.pairwise_attention.sharing import NOTHING, Sharing, Split
from everyformer.ops.pairwise_attention.tuning import is_small, small_tiles, tuning_for

kernels: Any = jitted  # their calls have a grid and options that no signature shows


@dataclass(frozen=True)
class Problem:
    """The inputs as kernels want them, and what all kernels are specialised on.

    Attributes:
        given: As the operator got it, last axes of q, k, v contiguous.
        tensors: q, k, v, bias, gain, padding and seed; q stands for what is not there.
        options: Constants of all kernels.
    """

    given: Operands
    tensors: tuple[Tensor, ...]
    options: dict[str, Any]

    @classmethod
    def of(cls, x: Operands) -> "Problem":
        """Make last axes contiguous, and collect the options."""
        q, k, v = map(addressable, x[:3])
        padding = x.key_padding
        padded = None if padding is None else padding.contiguous().view(torch.int8)
        D = q.shape[-1]
        return cls(
            given=x._replace(q=q, k=k, v=v),
            tensors=(
                *(q, k, v),
                *(q if y is None else y for y in (x.bias, x.gain, padded, x.seed)),
            ),
            options={
                "D": D,
                "BLOCK_D": max(16, power_of_two(D)),
                "CAUSAL": x.causal,
                "HAS_BIAS": x.bias is not None,
                "HAS_GAIN": x.gain is not None,
                "HAS_PAD": padding is not None,
                "DROPS": x.seed is not None,
                "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
                "WIDE": any(_reach(y, x.sizes) >= 2**31 for y in x[3:5]),
            },
        )

    def strides(self, *more: Tensor) -> list[int]:
        """Those of q, k, v and more, of bias and gain, and of padding."""
        rows = [stride for x in (*self.given[:3], *more) for stride in x.stride()[:3]]
        pairs = [stride for x in self.given[3:5] for stride in _pair_strides(x)]
        return [*rows, *pairs, self.given.k.shape[2]]

    @property
    def numbers(self) -> tuple[float, ...]:
        """Sizes, the scale in base 2, and what weights are dropped."""
        x = self.given
        drops = threshold(x.dropout), growth(x.dropout)
        return *x.sizes, x.scale * LOG2_E, *drops

    def with_tiles(self, tiles: Tiles) -> dict[str, Any]:
        """The options of a launch."""
        _, _, n_q, n_k = self.given.sizes
        even = n_q % tiles.queries == 0 and n_k % tiles.keys == 0
        return self.options | tiles.options | {"EVEN": even}

    @property
    def heads_first(self) -> bool:
        """Whether the programs of a head come one after the other: a batch shares most."""
        x = self.given
        pairs = [Sharing.of(y, x.sizes) for y in x[3:5] if y is not None]
        return any(y.batch and not y.heads for y in pairs)


def _pair_strides(pairs: Tensor | None) -> list[int]:
    """Strides of batch, head, query and key; 0 for an axis that is shared."""
    if pairs is None:
        return [0] * 4
    both = zip(pairs.shape, pairs.stride(), strict=True)
    return [0 if size == 1 else stride for size, stride in both]


def _reach(pairs: Tensor | None, sizes: tuple[int, int, int, int]) -> int:
    """How far apart entries of one matrix lie, here or in its gradient; of whole tiles."""
    rows, columns = (size + LARGEST_TILE for size in sizes[2:])
    *_, by_row, by_column = _pair_strides(pairs)
    return max(rows * by_row + columns * by_column, rows * columns)


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The output, and the base-2 logarithm of each row's sum of exponentials.

    In base 2, as the kernels have it: turned into another base and back, a large logarithm
    would no longer cancel the logits.
    """
    p = Problem.of(x)
    B, H, n_q, n_k = x.sizes
    small = is_small(x.q, x.k)
    tiles = small_tiles(x.q, x.k) if small else tuning_for(x.q).forward
    one = n_k <= tiles.keys
    out = empty_like(x.q)
    lse = torch.empty(B, H, n_q, dtype=torch.float32, device=x.q.device)
    launch(
        kernels._forward_kernel, (ceil_div(n_q, tiles.queries) * B * H,),
        *p.tensors, out, lse, *p.strides(), *p.numbers,
        HEADS_FIRST=p.heads_first, ONE=one, **p.with_tiles(tiles),
    )  # fmt: skip
    return out, lse


def backward(x: Operands, incoming: Incoming) -> Gradients:
    """Gradients of q, k, v, and of bias and gain where they are needed."""
    needs = (incoming.needs_bias, incoming.needs_gain)
    grad_out, out, lse = incoming[:3]
    step = Backward(
        Problem.of(x),
        incoming._replace(
            grad_out=addressable(grad_out), out=out.contiguous(), lse=lse.contiguous()
        ),
        tuple(y if need else None for y, need in zip(x[3:5], needs, strict=True)),
    )
    return step.all()


@dataclass(frozen=True)
class Backward:
    """The backward pass.

    Attributes:
        problem: The operands.
        incoming: What comes back, rows contiguous.
        wanted: Bias and gain, None where no gradient is needed.
    """

    problem: Problem
    incoming: Incoming
    wanted: tuple[Tensor | None, ...]

    @property
    def sharing(self) -> list[Sharing | None]:
        """Of the gradients that are needed."""
        sizes = self.problem.given.sizes
        return [None if y is None else Sharing.of(y, sizes) for y in self.wanted]

    def all(self) -> Gradients:
        """dQ, dK, dV, and gradients of what nothing shares; then sums of the others."""
        x = self.problem.given
        B, H, n_q, _ = x.sizes
        delta = torch.empty(B, H, n_q, dtype=torch.float32, device=x.q.device)
        small = is_small(x.q, x.k)
        # Tiles that lie in the future alone are not visited.
        make = torch.zeros_like if x.causal and not small else torch.empty_like
        alone = [
            make(y, memory_format=torch.contiguous_format)
            if y is not None and sharing == NOTHING
            else None
            for y, sharing in zip(self.wanted, self.sharing, strict=True)
        ]
        dq, dk, dv = (self._small if small else self._tiled)(delta, alone)
        tiles = small_tiles(x.q, x.k) if small else tuning_for(x.q).sums
        left = (y if g is None else None for y, g in zip(self.wanted, alone, strict=True))
        rest = replace(self, wanted=tuple(left)).sums(delta, tiles)
        dbias, dgain = (a if b is None else b for a, b in zip(alone, rest, strict=True))
        return dq, dk, dv, dbias, dgain

    def _small(self, delta: Tensor, alone: list[Tensor | None]) -> list[Tensor]:
        """All in one kernel."""
        p, x = self.problem, self.problem.given
        B, H = x.sizes[:2]
        do, _, lse = self.incoming[:3]
        found = [empty_like(y) for y in x[:3]]
        launch(
            kernels._small_kernel, (B * H,),
            *p.tensors, do, lse, delta, *found, *(x.q if y is None else y for y in alone),
            *p.strides(do), *p.numbers, x.scale,
            HEADS_FIRST=p.heads_first,
            PUT_BIAS=alone[0] is not None, PUT_GAIN=alone[1] is not None,
            **p.with_tiles(small_tiles(x.q, x.k)),
        )  # fmt: skip
        return found

    def _tiled(self, delta: Tensor, alone: list[Tensor | None]) -> list[Tensor]:
        """dQ, Delta and what nothing shares by tiles of queries; then dK and dV."""
        p, x = self.problem, self.problem.given
        B, H, n_q, n_k = x.sizes
        do, out, lse = self.incoming[:3]
        tuning, first = tuning_for(x.q), p.heads_first
        dq, dk, dv = found = [empty_like(y) for y in x[:3]]
        numbers = (*p.strides(do), *p.numbers, x.scale)
        launch(
            kernels._dq_kernel, (ceil_div(n_q, tuning.dq.queries) * B * H,),
            *p.tensors, do, lse, delta, out, dq,
            *(x.q if y is None else y for y in alone), *numbers, HEADS_FIRST=first,
            PUT_BIAS=alone[0] is not None, PUT_GAIN=alone[1] is not None,
            **p.with_tiles(tuning.dq),
        )  # fmt: skip
        launch(
            kernels._dkv_kernel, (ceil_div(n_k, tuning.dkv.keys) * B * H,),
            *p.tensors, do, lse, delta, dk, dv, *numbers, HEADS_FIRST=first,
            **p.with_tiles(tuning.dkv),
        )  # fmt: skip
        return found

    def sums(self, delta: Tensor, tiles: Tiles) -> Sequence[Tensor | None]:
        """Gradients that are summed: both at once if bias and gain are shared alike."""
        sharing = self.sharing
        if sharing[0] is not None and sharing[0] == sharing[1]:
            return self._summed(delta, tiles, sharing[0])
        found: list[Tensor | None] = []
        for which, own in enumerate(sharing):
            alone = tuple(y if k == which else None for k, y in enumerate(self.wanted))
            one = (
                None
                if own is None
                else replace(self, wanted=alone)._summed(delta, tiles, own)[which]
            )
            found.append(one)
        return found

    def _summed(
        self, delta: Tensor, tiles: Tiles, sharing: Sharing
    ) -> Sequence[Tensor | None]:
        """Gradients that are all summed over the same axes."""
        p, x = self.problem, self.problem.given
        n_q, n_k = x.sizes[2:]
        do, _, lse = self.incoming[:3]
        rows = 1 if sharing.queries else ceil_div(n_q, tiles.queries)
        programs = rows * ceil_div(n_k, tiles.keys)
        split = Split.of(sharing.problems, x.sizes, programs * tiles.warps)
        buffers = [None if y is None else split.buffer(y) for y in self.wanted]
        launch(
            kernels._sums_kernel, (programs * split.owners * split.parts,),
            *p.tensors, do, lse, delta, *(x.q if y is None else y for y in buffers),
            *p.strides(do), *p.numbers, *split.numbers,
            SUM_B=sharing.batch, SUM_H=sharing.heads, SUM_Q=sharing.queries,
            PUT_BIAS=buffers[0] is not None, PUT_GAIN=buffers[1] is not None,
            **p.with_tiles(tiles),
        )  # fmt: skip
        return [
            None if y is None or buffer is None else split.total(buffer, y)
            for y, buffer in zip(self.wanted, buffers, strict=True)
        ]
