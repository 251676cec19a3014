"""One piece of a pattern, forward and backward: its launches, prepared, and its buffers.

A function here prepares the launches for the shapes of a problem, and gives the function
that runs them on tensors. Pieces after the first go on where the last one ended (`again`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from everyformer.ops.launching import Prepared, Tiles, ceil_div, power_of_two
from everyformer.ops.sparse_attention import tuning
from everyformer.ops.sparse_attention.kernels import edges as edges_jitted
from everyformer.ops.sparse_attention.kernels import joining as joining_jitted
from everyformer.ops.sparse_attention.kernels import star as star_jitted
from everyformer.ops.sparse_attention.kernels import tiles as tiles_jitted
from everyformer.ops.sparse_attention.problem import Problem
from everyformer.ops.sparse_attention.walks import EdgeWalk, Slots, StarWalk, TileWalk

tiles: Any = tiles_jitted  # their private names are for launches alone
edges: Any = edges_jitted
joining: Any = joining_jitted
star: Any = star_jitted

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""q, k, v, 1 where a key does not count (int8), the seed; or q as a placeholder."""

Forward = Callable[[Inputs, Tensor, Tensor], None]
"""Fills in the output, and the base-2 logarithm of each row's sum of exponentials."""


class Upstream(NamedTuple):
    """What a backward pass reads and fills in.

    dQ of the first piece comes first: it fills in delta, which all others read. The
    gradients of q, k and v lie one after the other.
    """

    grad_out: Tensor
    out: Tensor
    lse: Tensor
    delta: Tensor
    gradients: tuple[Tensor, ...]


Backward = Callable[[Inputs, Upstream], None]


def tile_forward(
    p: Problem, walk: TileWalk, sizes: Tiles, *, own: bool, again: bool
) -> Forward:
    """By tiles of queries."""
    attend = Prepared(
        tiles._forward_kernel, (walk.programs, p.pairs),
        *p.places, _rows(walk.slots), *p.sizes, *p.scales, *walk.numbers,
        OWN=own, AGAIN=again, num_warps=sizes.warps, num_stages=sizes.stages,
        **walk.options, **p.tile_options,
    )  # fmt: skip
    return _forward(p, attend, walk.lists, walk.slots, again)


def edge_forward(p: Problem, walk: EdgeWalk, *, again: bool) -> Forward:
    """By strands of queries."""
    attend = Prepared(
        edges._forward_kernel, (_strand_programs(walk), p.pairs),
        *p.places, len(walk.strands), _rows(walk.slots), *p.sizes, *p.scales,
        AGAIN=again, SLOTS=walk.slots is not None, **tuning.STRANDS, **p.options,
    )  # fmt: skip
    return _forward(p, attend, walk.lists, walk.slots, again)


def star_forward(p: Problem, walk: StarWalk) -> Forward:
    """By tiles of the ring."""
    attend = Prepared(
        star._forward_kernel, (walk.slots.rows, p.pairs),
        *p.places, walk.slots.rows, *p.sizes, walk.width, *p.scales,
        **tuning.ring_for(p.dtype, p.shape[3]), **p.star_options,
    )  # fmt: skip
    return _forward(p, attend, (), walk.slots, again=False)


def _forward(
    p: Problem,
    attend: Prepared,
    lists: tuple[Tensor, ...],
    slots: Slots | None,
    again: bool,
) -> Forward:
    """The kernel, then the sums that were cut."""
    join = None if slots is None else _joined(p, joining._softmax_kernel, slots, again)
    width = p.shape[3]

    def run(x: Inputs, out: Tensor, lse: Tensor) -> None:
        part, part_lse = p.buffer(slots, width, x[0]), p.buffer(slots, 1, x[0])
        attend(*x, *lists, out, lse, part, part_lse)
        if join is not None and slots is not None:
            join(part, part_lse, slots.joins, out, lse)

    return run


def tile_backward(
    p: Problem,
    queries: tuple[TileWalk, Tiles],
    keys: tuple[TileWalk, Tiles],
    *,
    own: bool,
    again: bool,
) -> Backward:
    """dQ by tiles of queries, with `own` also dK and dV of own keys; then by tiles of keys.

    Args:
        p: The problem.
        queries: Walk and tiles for dQ.
        keys: Walk and tiles for dK and dV.
        own: Whether every query attends to itself besides.
        again: Whether a piece came before.
    """

    def prepared(kernel: Any, walk: TileWalk, sizes: Tiles, **options: bool) -> Prepared:
        return Prepared(
            kernel, (walk.programs, p.pairs),
            *p.places, _rows(walk.slots), *p.sizes, *p.scales, *walk.numbers,
            num_warps=sizes.warps, num_stages=sizes.stages,
            **options, **walk.options, **p.tile_options,
        )  # fmt: skip

    dq = prepared(tiles._dq_kernel, *queries, OWN=own, AGAIN=again)
    dkv = prepared(tiles._dkv_kernel, *keys, AGAIN=again or own)
    return _backward(p, (dq, queries[0], again), (dkv, keys[0], again or own), filled=3)


def edge_backward(
    p: Problem, queries: EdgeWalk, keys: EdgeWalk, *, again: bool
) -> Backward:
    """dQ by strands of queries, dK and dV by strands of keys."""

    def prepared(kernel: Any, walk: EdgeWalk) -> Prepared:
        return Prepared(
            kernel, (_strand_programs(walk), p.pairs),
            *p.places, len(walk.strands), _rows(walk.slots), *p.sizes, *p.scales,
            AGAIN=again, SLOTS=walk.slots is not None, **tuning.STRANDS, **p.options,
        )  # fmt: skip

    dq = prepared(edges._dq_kernel, queries)
    dkv = prepared(edges._dkv_kernel, keys)
    return _backward(p, (dq, queries, again), (dkv, keys, again), filled=1)


Half = tuple[Prepared, TileWalk | EdgeWalk, bool]
"""A kernel, its walk, and whether others have filled in the same gradients before."""


def _backward(p: Problem, queries: Half, keys: Half, *, filled: int) -> Backward:
    """dQ, then dK and dV, each with the sums that were cut.

    Args:
        p: The problem.
        queries: For dQ.
        keys: For dK and dV.
        filled: How many gradients the first kernel is given: of own keys, too, or dQ alone.
    """
    (dq, by_query, q_again), (dkv, by_key, kv_again) = queries, keys
    sum_q = _Sums(p, by_query.slots, q_again, several=1)
    sum_kv = _Sums(p, by_key.slots, kv_again, several=2)

    def run(x: Inputs, up: Upstream) -> None:
        part = sum_q.buffer(x[0])
        read = (up.grad_out, up.out, up.lse, up.delta)
        dq(*x, *by_query.lists, *read, *up.gradients[:filled], part)
        sum_q(part, up.gradients[0])
        parts = sum_kv.buffer(x[0])
        read = (up.grad_out, up.lse, up.delta)
        dkv(*x, *by_key.lists, *read, *up.gradients[1:], *sum_kv.halves(parts))
        sum_kv(parts, up.gradients[1])

    return run


def star_backward(p: Problem, walk: StarWalk) -> Backward:
    """All three gradients by tiles of the ring."""
    kernel = Prepared(
        star._backward_kernel, (walk.slots.rows, p.pairs),
        *p.places, walk.slots.rows, *p.sizes, walk.width, *p.scales,
        **tuning.ring_for(p.dtype, p.shape[3]), **p.star_options,
    )  # fmt: skip
    sums = _Sums(p, walk.slots, again=False, several=3)

    def run(x: Inputs, up: Upstream) -> None:
        parts = sums.buffer(x[0])
        kernel(*x, up.grad_out, up.out, up.lse, *up.gradients, parts)
        sums(parts, up.gradients[0])

    return run


class _Sums:
    """Adds up the slots of several gradients, which lie one after the other."""

    def __init__(self, p: Problem, slots: Slots | None, again: bool, several: int) -> None:
        """Nothing to do without slots."""
        self.p, self.slots, self.several = p, slots, several
        self.join = (
            None
            if slots is None
            else _joined(p, joining._sum_kernel, slots, again, several)
        )

    def buffer(self, like: Tensor) -> Tensor:
        """Memory for the slots; a placeholder for none."""
        return self.p.buffer(self.slots, self.p.shape[3], like, self.several)

    def halves(self, buffer: Tensor) -> tuple[Tensor, ...]:
        """That of either of two gradients."""
        return (buffer, buffer) if self.slots is None else buffer.unbind()

    def __call__(self, buffer: Tensor, totals: Tensor) -> None:
        """From the buffer to the gradients, the first of which is given."""
        if self.join is not None and self.slots is not None:
            self.join(buffer, self.slots.joins, totals)


def _joined(
    p: Problem, kernel: Any, slots: Slots, again: bool, several: int = 1
) -> Prepared:
    at_once = min(tuning.JOINED_AT_ONCE, power_of_two(slots.most))
    return Prepared(
        kernel, (slots.joins.shape[0], several * p.pairs),
        slots.stride, slots.rows, p.shape[2], AGAIN=again, T=at_once, **p.widths,
    )  # fmt: skip


def _rows(slots: Slots | None) -> int:
    return 0 if slots is None else slots.rows


def _strand_programs(walk: EdgeWalk) -> int:
    return ceil_div(len(walk.strands), tuning.STRANDS["R"])
