"""Sorting networks, and sorts in f's own program: rule R6.

A round is a list of pairs (i, j), i < j, of distinct wires: afterwards wire i holds the
smaller value and wire j the larger one. The rounds sort if every input leaves in order;
then wire k holds the k-th smallest of the n inputs, whatever the network. So outputs of two
networks over the same multiset of terms are the same terms, `Sorting.sorted_terms`.

That rounds sort is checked, for two kinds of networks, each completely:

    neighbours only     they sort everything if they sort n, n-1, ..., 1
                        (de Bruijn 1974; Knuth, TAOCP 3, 5.3.4, exercise 36)
    merges              stage p = 2^s, ..., 2, 1 compares wires of one class modulo p.
                        Before it the two classes modulo 2p inside are sorted; the stage
                        must sort their union for all sorted 0-1 inputs. By the 0-1
                        principle it then sorts all inputs, and after stage 1 all wires
                        are in order
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby

import numpy as np

from everyformer.certify.compile.algebra.pieces import Pieces
from everyformer.certify.compile.algebra.terms import OpenSum, Term
from everyformer.numerics.expression import Expression

Round = list[tuple[int, int]]

MOST_WIRES = 1024
"""Of a network that is checked: merges of n wires take about n^3 bytes."""


def odd_even(n: int) -> list[Round]:
    """Odd-even transposition, n rounds: what a traced `np.sort` does."""
    return [[(k, k + 1) for k in range(start % 2, n - 1, 2)] for start in range(n)]


def batcher(n: int) -> list[Round]:
    """Batcher's merge exchange for any n (Knuth, TAOCP 3, 5.2.2, Algorithm M).

    Example:
        >>> batcher(4)
        [[(0, 2), (1, 3)], [(0, 1), (2, 3)], [(1, 2)]]
    """
    rounds: list[Round] = []
    top = 1 << max((n - 1).bit_length() - 1, 0)
    p = top if n > 1 else 0
    while p:
        q, r, d = top, 0, p
        while True:
            pairs = [(i, i + d) for i in range(n - d) if i & p == r]
            if pairs:
                rounds.append(pairs)
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return rounds


def is_sorting_network(n: int, rounds: Sequence[Sequence[tuple[int, int]]]) -> bool:
    """Whether the rounds sort n wires, as far as the two checks tell.

    False may also mean that the network is of neither kind, or too large.
    """
    if n > MOST_WIRES:
        return False
    for pairs in rounds:
        wires = [wire for pair in pairs for wire in pair]
        inside = all(0 <= i < j < n for i, j in pairs)
        if not inside or len(set(wires)) != len(wires):
            return False
    if all(j == i + 1 for pairs in rounds for i, j in pairs):
        backwards = np.arange(n)[::-1, None].copy()
        return _sorts(backwards, rounds)
    distances = [{(j - i) & (i - j) for i, j in pairs} for pairs in rounds]
    if not all(len(found) == 1 for found in distances):
        return False
    strides = [min(found) for found in distances]
    sorted_modulo = 1 << (n - 1).bit_length()  # >= n: each class is one wire
    for p, members in groupby(range(len(rounds)), key=strides.__getitem__):
        if 2 * p != sorted_modulo:
            return False
        stage = [rounds[k] for k in members]
        if not all(_merges(n, p, r, stage) for r in range(p)):
            return False
        sorted_modulo = p
    return sorted_modulo == 1


def _merges(n: int, p: int, r: int, stage: list[Sequence[tuple[int, int]]]) -> bool:
    """Whether the stage sorts wires r, r + p, ... if every other one is in order."""
    wires = np.arange(r, n, p)
    first, second = wires[::2], wires[1::2]
    ones = np.indices((len(first) + 1, len(second) + 1)).reshape(2, 1, -1)
    values = np.zeros((n, ones.shape[-1]), dtype=np.uint8)
    values[first] = np.arange(len(first))[::-1, None] < ones[0]
    values[second] = np.arange(len(second))[::-1, None] < ones[1]
    inside = [[(i, j) for i, j in pairs if i % p == r] for pairs in stage]
    return _sorts(values, inside, wires)


def _sorts(
    values: np.ndarray,
    rounds: Sequence[Sequence[tuple[int, int]]],
    wires: np.ndarray | slice = slice(None),
) -> bool:
    """Whether the rounds put each column in order; changes the values."""
    for pairs in rounds:
        if pairs:
            i, j = np.array(pairs).T
            low, high = np.minimum(values[i], values[j]), np.maximum(values[i], values[j])
            values[i], values[j] = low, high
    ordered = values[wires]
    return bool((ordered[1:] >= ordered[:-1]).all())


class Sorting(Pieces):
    """Maxima and minima, with the other order statistics."""

    def sorted_terms(self, leaves: Sequence[Term]) -> list[Term]:
        """The terms of the smallest, second smallest, ..., largest of n terms.

        Order statistics of one multiset are atoms order(k, multiset), the first and the
        last the minimum and the maximum; t_k + h and s t_k, s > 0, are taken out as in
        R5. Defined where all leaves are.
        """
        n = len(leaves)
        if n <= 2:
            return [self.minimum(leaves), self.maximum(leaves)][2 - n :] if n else []
        shift, scale, reduced = self.without_common(list(leaves))
        reduced.sort(key=lambda t: t.serial)
        members = tuple(reduced)
        found: list[Term] = []
        for k in range(1, n - 1):
            atom = self.atom_term("order", members, k)
            parts = [(scale, atom), (Fraction(1), shift)]
            found.append(self.affine(parts, Fraction(0)))
        return [self.minimum(leaves), *found, self.maximum(leaves)]

    def run_sorted(
        self, expression: Expression, sorts: Sequence[Sequence[int]]
    ) -> list[list[Term]]:
        """f's terms, where the claimed sorts have the terms of `sorted_terms`.

        A sum that one line reads is open until a line reads it that is not a sum.

        Args:
            expression: f.
            sorts: For each sort the n lines where it ends, in order. A claim that
                `sorted_leaves` does not confirm is ignored: its lines are minima and
                maxima as they stand.

        Returns:
            f's entries, a row for each token, as `Expression.run` gives them.
        """
        leaves_of: dict[int, tuple[tuple[int, ...], int]] = {}
        for ends in sorts:
            leaves = sorted_leaves(expression, ends)
            if leaves is not None:
                for k, end in enumerate(ends):
                    leaves_of.setdefault(end, (leaves, k))
        reads = _reads(expression, leaves_of)
        values: dict[int, Term | OpenSum] = {}
        done: dict[tuple[int, ...], list[Term]] = {}

        def read(k: int) -> Term | OpenSum:
            reads[k] -= 1
            return values[k] if reads[k] else values.pop(k)

        for number, (op, args, value) in enumerate(expression.nodes):
            if not reads[number]:
                continue
            known = leaves_of.get(number)
            if known is not None:
                leaves, k = known
                if leaves not in done:
                    terms = [self.closed_sum(values[leaf]) for leaf in leaves]
                    done[leaves] = self.sorted_terms(terms)
                values[number] = done[leaves][k]
            elif op == "x":
                values[number] = self.entry(*args)
            elif op == "const" and value is not None:
                values[number] = self.constant(value)
            elif op == "pow":
                values[number] = self.pow(self.closed_sum(read(args[0])), args[1])
            elif op == "add" or op == "sub":
                sign = 1 if op == "add" else -1
                total = self.opened_sum(read(args[0]), read(args[1]), sign)
                values[number] = total if reads[number] == 1 else self.closed_sum(total)
            else:
                operands = [self.closed_sum(read(k)) for k in args]
                values[number] = getattr(self, op)(*operands)
        return [[self.closed_sum(values[k]) for k in row] for row in expression.outputs]


def _reads(
    expression: Expression, leaves_of: Mapping[int, tuple[tuple[int, ...], int]]
) -> list[int]:
    """How often each line is read, 0 for those that no output needs.

    The leaves of sorts, which many ends read, count twice: they are kept as terms.
    """
    nodes = expression.nodes
    reads = [0] * len(nodes)
    for row in expression.outputs:
        for k in row:
            reads[k] += 1
    for number in range(len(nodes) - 1, -1, -1):
        if not reads[number]:
            continue
        known = leaves_of.get(number)
        for k in nodes[number].operands if known is None else known[0]:
            reads[k] += 1 if known is None else 2
    return reads


def sorted_leaves(expression: Expression, ends: Sequence[int]) -> tuple[int, ...] | None:
    """The n distinct lines of which the lines `ends` are odd-even transposition, or None.

    Which lines these are is guessed from the minima and maxima below the ends; then the
    network is built from them line by line and must arrive at the ends. Leaves that are
    minima or maxima themselves are not found.
    """
    n = len(ends)
    nodes = expression.nodes
    if n < 2 or len(set(ends)) != n or not all(0 <= end < len(nodes) for end in ends):
        return None
    lines: dict[tuple[str, frozenset[int]], int] = {}
    cone: set[int] = set()
    leaves: set[int] = set()
    waiting = list(ends)
    while waiting:
        number = waiting.pop()
        node = nodes[number]
        if node.op not in {"min", "max"}:
            leaves.add(number)
        elif number not in cone:
            cone.add(number)
            lines[node.op, frozenset(node.args)] = number
            waiting += node.args
        if len(leaves) > n or len(cone) > n * (n - 1):
            return None
    wires = _in_order(leaves, lines) if len(leaves) == n else None
    if wires is None:
        return None
    values = list(wires)
    for pairs in odd_even(n):
        for i, j in pairs:
            both = frozenset((values[i], values[j]))
            if not (("min", both) in lines and ("max", both) in lines):
                return None
            values[i], values[j] = lines["min", both], lines["max", both]
    return tuple(wires) if values == list(ends) else None


def _in_order(
    leaves: set[int], lines: dict[tuple[str, frozenset[int]], int]
) -> list[int] | None:
    """The leaves wire by wire: the first round pairs them, the second one chains pairs."""
    pairs = [both for op, both in lines if op == "min" and both <= leaves]
    paired = {leaf for both in pairs for leaf in both}
    if len(paired) != 2 * len(pairs) or len(leaves) - len(paired) > 1:
        return None
    upper = {lines.get(("max", both)): both for both in pairs}
    lower = {lines["min", both]: both for both in pairs}
    after: dict[frozenset[int], frozenset[int]] = {}
    for _, both in lines:
        top, bottom = both & upper.keys(), both & lower.keys()
        if len(both) == 2 and len(top) == len(bottom) == 1:
            after.setdefault(upper[min(top)], lower[min(bottom)])
    starts = [both for both in pairs if both not in after.values()]
    if len(starts) != 1:
        return None
    order: list[int] = []
    both: frozenset[int] | None = starts[0]
    while both is not None and len(order) < len(paired):
        order += sorted(both)
        both = after.get(both)
    order += leaves - paired
    return order if len(set(order)) == len(leaves) == len(order) else None
