"""Exchanges that sort, followed as one network of comparators (rule R6).

A claim names a register and the blocks of the first and the last exchange. From the first
one on the register's n terms are *wires*: atoms that stand for what the exchanges made, and
for nothing else that the algebra knows. An exchange compares wires i and j if token i takes
the smaller and token j the larger of what both of them hold; that both read each other is
seen by their terms. After the last block the comparators, round by round, must sort
(`sorting.is_sorting_network`). Then token k holds the k-th smallest of the n terms that the
register held before the first exchange, whatever they are.

Whoever reads a wire on the way reads an atom that no term of f has. A wire that is written
otherwise, or that does not meet its partner, ends the proof.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from everyformer.certify.compile.algebra.sorting import Round, Sorting, is_sorting_network
from everyformer.certify.compile.algebra.terms import Term
from everyformer.certify.compile.claims import Sort, refuse
from everyformer.certify.compile.rows import BlockWeights
from everyformer.certify.compile.values import State, Terms


@dataclass
class _Run:
    """A sort on its way: the terms it began with, the wires now, the rounds so far."""

    claim: Sort
    number: int
    leaves: tuple[Term, ...] = ()
    wires: tuple[Term, ...] = ()
    rounds: list[Round] = field(default_factory=list[Round])


class SortRuns:
    """The claimed sorts of a network.

    Attributes:
        lines: The lines of f that belong to the sorts that were followed to their end.
    """

    def __init__(self, claims: Iterable[Sort], algebra: Terms) -> None:
        """Begin with no exchange. An algebra that tells no terms has no sorts.

        Raises:
            Undecided: If two claims are about one register at one time.
        """
        self._algebra = algebra if isinstance(algebra, Sorting) else None
        self._at: dict[tuple[int, int], _Run] = {}
        self._ending: dict[int, list[_Run]] = {}
        for number, claim in enumerate(claims if self._algebra is not None else ()):
            run, (first, last) = _Run(claim, number), claim.blocks
            self._ending.setdefault(last, []).append(run)
            for block in range(first, last + 1):
                if self._at.setdefault((claim.register, block), run) is not run:
                    raise refuse(f"register {claim.register} is claimed to be sorted twice")
        self._sorted: dict[tuple[tuple[tuple[int, int], ...], ...], bool] = {}
        self.lines: list[tuple[int, ...]] = []

    def exchanged(
        self,
        block: BlockWeights,
        register: int,
        mine: Sequence[Any],
        theirs: Sequence[Any],
        opened: tuple[np.ndarray, np.ndarray],
    ) -> tuple[Any, ...] | None:
        """The terms after an exchange that is part of a claimed sort, or None.

        Args:
            block: Where it is.
            register: Which register.
            mine: Its terms before.
            theirs: The terms that it is compared with.
            opened: The tokens that take the smaller, and those that take the larger.

        Raises:
            Undecided: If it is not a round of comparators.
        """
        run = self._at.get((register, block.number))
        if run is None or self._algebra is None:
            return None
        if not run.rounds:
            run.leaves = run.wires = tuple(mine)
        elif run.wires != tuple(mine):
            raise block.undecided(f"register {register} was changed while it is sorted")
        pairs = _comparators(run.wires, theirs, *opened)
        if pairs is None:
            raise block.undecided(f"register {register} is not sorted by comparators")
        fresh = range(len(run.wires)) if not run.rounds else [k for p in pairs for k in p]
        run.rounds.append(pairs)
        wires = list(run.wires)
        for k in fresh:
            place = (run.number, len(run.rounds), k)
            wires[k] = self._algebra.atom_term("wire", (), *place)
        run.wires = tuple(wires)
        return run.wires

    def ended(self, block: BlockWeights, state: State) -> State:
        """The state after a block, with sorted terms where a sort ends.

        Raises:
            Undecided: If the exchanges do not sort, or were not the last to write.
        """
        for run in self._ending.get(block.number, ()):
            register = run.claim.register
            assert self._algebra is not None, "without terms there are no runs"  # noqa: S101
            held, rounds = state.held[register], [pairs for pairs in run.rounds if pairs]
            if not run.rounds or held.terms != run.wires:
                raise block.undecided(f"register {register} is not sorted here")
            if not self._sorts(len(run.wires), rounds):
                raise block.undecided(f"the exchanges of register {register} do not sort")
            terms = tuple(self._algebra.sorted_terms(run.leaves))
            state = state.copy()
            state.held[register] = replace(held, terms=terms)
            self.lines.append(run.claim.lines)
        return state

    def _sorts(self, n: int, rounds: Sequence[Round]) -> bool:
        """Whether the rounds sort; registers with the same rounds share the answer."""
        key = tuple(map(tuple, rounds))
        if key not in self._sorted:
            self._sorted[key] = is_sorting_network(n, rounds)
        return self._sorted[key]


def _comparators(
    wires: Sequence[Term], theirs: Sequence[Any], low: np.ndarray, high: np.ndarray
) -> Round | None:
    """Pairs (i, j): token i takes the smaller of wires i and j, and token j the larger.

    Tokens with equal terms may stand for each other: what is compared is the same. A token
    that is compared with its own term keeps it.
    """
    waiting: dict[tuple[int, int], list[int]] = {}
    moved = np.array([a is not b for a, b in zip(wires, theirs, strict=True)])
    for j in np.flatnonzero(high & moved).tolist():
        waiting.setdefault((id(wires[j]), id(theirs[j])), []).append(j)
    pairs: Round = []
    for i in np.flatnonzero(low & moved).tolist():
        partners = waiting.get((id(theirs[i]), id(wires[i])))
        if not partners:
            return None
        pairs.append((i, partners.pop()))
    return None if any(waiting.values()) else pairs
