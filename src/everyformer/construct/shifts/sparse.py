"""Contextual ids through sparse attention: a chain along the path, then s maxima.

The theorem is Theorem 1 of Yun et al. 2020b; its proof here is this project's, step by step
in docs/constructions/sparse.md. One token of the path after the other is shifted by what it
hears of the one before (Stage A); the last one then names the whole sequence, and s
all-max-shifts carry that name to every token (Stage B).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from everyformer.construct.shifts.contextual import id_heads
from everyformer.construct.shifts.sparse_constants import SparseConstants
from everyformer.construct.shifts.step import ProofStep
from everyformer.model.stacks import Stage
from everyformer.numerics.kinds import NumberKind
from everyformer.papers import YUN2020B, implements

OURS = "everyformer, docs/constructions/sparse.md"


@dataclass(frozen=True)
class Shift:
    """One active layer of Stage A.

    Attributes:
        part: Its pattern, 0-based.
        low: 2 b_1 in units of delta, an odd number.
        high: 2 b_2.
    """

    part: int
    low: int
    high: int


def chain(c: SparseConstants) -> Iterator[Shift]:
    """The active layers of Stage A, one in each cycle of p layers.

    For i = 2 .. n the token gamma(i) has its id in (i-2) D + [0, a-1] delta. The layer of a
    pattern in which it hears gamma(i-1) has one window around all of them; in the sweep a
    layers have one for each.
    """
    for i in range(1, c.n):
        part = edge_part(c, i)
        start, a = (i - 1) * c.spacing * c.D, c.V
        if c.variant == "wide":
            yield Shift(part, 2 * start - 1, 2 * (start + a - 1) + 1)
        else:
            for v in range(start, start + a):
                yield Shift(part, 2 * v - 1, 2 * v + 1)


def edge_part(c: SparseConstants, i: int) -> int:
    """The first pattern in which gamma[i] hears gamma[i-1]; 0 if it does in none."""
    before, token = c.gamma[i - 1], c.gamma[i]
    found = (k for k, part in enumerate(c.pattern.parts) if before in part.heard(token))
    return next(found, 0)


def masks(c: SparseConstants, first: int, layers: int) -> np.ndarray:
    """Who attends to whom in blocks first, first + 1, .. (0-based): (layers, n, n)."""
    parts = [part.mask() for part in c.pattern.parts]
    return np.stack([parts[block % len(parts)] for block in range(first, first + layers)])


def padding(c: SparseConstants, kind: NumberKind) -> ProofStep:
    """Blocks that do nothing, until the next one has pattern 1."""
    mask = masks(c, c.blocks_before, c.padding)
    # Queries z + delta/2 > 0: with W_O = 0 it matters only that hardmax has no ties.
    biases = kind.quotient(np.full((c.padding, 2), -1, dtype=object), 2 * c.K)
    stack = id_heads(c, kind, biases, [[0, 0]], mask)
    return ProofStep(Stage("padding", OURS, attention=stack))


@implements(YUN2020B, "Theorem 1")
def chain_shifts(c: SparseConstants, kind: NumberKind) -> ProofStep:
    """Stage A: z_gamma(i) += a (max - min over A_gamma(i)), for i = 2 .. n.

    Two heads psi(.; b), hardmax over A_k of the scores (z_k - b) z_j, as in Lemma 6 of Yun
    et al. 2020: their difference is max - min for b_1 < z_k < b_2, and 0 for other tokens.
    p (n-1) layers, of which one in each cycle is active and the others have W_O = 0.

    Before cycle i the largest id is L_{i-1} at gamma(i-1) and the least is l_i at gamma(i),
    so L_i = l_i + a (L_{i-1} - l_i), and L_n names the sequence (A1 to A3).
    """
    layers, p = c.chain_layers, c.pattern.p
    biases = np.full((layers, 2), -1, dtype=object)
    outputs = [[0, 0] for _ in range(layers)]
    for cycle, shift in enumerate(chain(c)):
        layer = cycle * p + shift.part
        biases[layer] = shift.low, shift.high
        outputs[layer] = [c.c, -c.c]
    mask = masks(c, 0, layers)
    stack = id_heads(c, kind, kind.quotient(biases, 2 * c.K), outputs, mask)
    return ProofStep(Stage.of("chain shifts", OURS, attention=stack))


@implements(YUN2020B, "Theorem 1")
def max_shifts(c: SparseConstants, kind: NumberKind) -> ProofStep:
    """Stage B: z_k += C (max over A_k), s times, one head psi(.; 0).

    After t of them z_k is C^t (max over S_k^t) up to a factor (1 + 1/C)^t, and S_k^s is all
    tokens: every id lies in [C^s L_n, C^s L_n + C^s delta) (B1, B2).
    """
    biases = kind.quotient(np.zeros((c.s, 2), dtype=object))
    stack = id_heads(c, kind, biases, [[c.C, 0]], masks(c, 0, c.s))
    return ProofStep(Stage.of("max shifts", OURS, attention=stack))


def sparse_shifts(c: SparseConstants, kind: NumberKind) -> Iterator[ProofStep]:
    """The attention layers of the construction: p (n-1) + s, and the padding."""
    if c.padding:
        yield padding(c, kind)
    yield chain_shifts(c, kind)
    yield max_shifts(c, kind)


def chained_ids(c: SparseConstants, columns: np.ndarray) -> Iterator[np.ndarray]:
    """u^T Z before Stage A and after each of its active layers, by running them.

    Args:
        c: The constants.
        columns: Column numbers of sequences, shape (count, n).

    Yields:
        Integers in units of delta, shape (count, n): int64, or Python ints where the last
        ids overflow it.
    """
    dtype = np.int64 if c.id_bits <= 62 else object
    ids = columns.astype(dtype) + np.array(c.position_ids, dtype=dtype)
    yield ids
    for shift in chain(c):
        heard = [c.pattern.parts[shift.part].heard(k) for k in range(c.n)]
        inside = (2 * ids > shift.low) & (2 * ids < shift.high)
        spread = [ids[:, row].max(axis=1) - ids[:, row].min(axis=1) for row in heard]
        ids = ids + np.where(inside, c.c * np.stack(spread, axis=1), 0)
        yield ids


def raised_ids(c: SparseConstants, ids: np.ndarray) -> Iterator[np.ndarray]:
    """u^T Z after each layer of Stage B, from what Stage A left; units of delta."""
    for t in range(c.s):
        part = c.pattern.part_of(t)
        largest = [ids[:, part.heard(k)].max(axis=1) for k in range(c.n)]
        ids = ids + c.C * np.stack(largest, axis=1)
        yield ids


def sparse_ids(c: SparseConstants, columns: np.ndarray) -> np.ndarray:
    """The ids u^T g_c(H)_k after both stages, in units of delta: (count, n)."""
    *_, chained = chained_ids(c, columns)
    *_, ids = raised_ids(c, chained)
    return ids
