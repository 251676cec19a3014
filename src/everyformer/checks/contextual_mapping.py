"""Is a map a contextual mapping (Definition 5.1), and has it the properties of Lemma 6?

The check is exhaustive over the sequences given: nothing is sampled. Ids are compared as
the exact numbers they are (a float64 id is a dyadic number).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from everyformer.errors import InputError, NumberKindError
from everyformer.model.network import Network
from everyformer.numerics.rationals import exact_array
from everyformer.papers import YUN2020, implements
from everyformer.verdict import Verdict

Interval = tuple[Fraction, Fraction]
CONTEXT_STAGES = ("global shift", "lift", "max shifts")
"""The last stage of a contextual map, by construction."""


@dataclass(frozen=True)
class Collision:
    """Two tokens that have the same id and should not.

    Attributes:
        first: Number of the first sequence in the list given, and of its token.
        second: The same for the second.
        id: What they share.
        sequences: The two sequences themselves.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    id: Fraction
    sequences: tuple[list[Any], list[Any]]

    def __str__(self) -> str:
        """The collision in words."""
        a, b = self.sequences
        return (
            f"token {self.first[1]} of sequence {self.first[0]} {_show(a)} and "
            f"token {self.second[1]} of sequence {self.second[0]} {_show(b)} "
            f"share the id {self.id}"
        )


@dataclass(frozen=True)
class Stray:
    """A token whose id is on the wrong side of the interval [t_l, t_r).

    Attributes:
        sequence: Number of the sequence in the list given.
        token: Number of the token.
        id: Its id.
        expected_inside: True when the id should lie in the interval.
    """

    sequence: int
    token: int
    id: Fraction
    expected_inside: bool

    def __str__(self) -> str:
        """The stray id in words."""
        side = "outside" if self.expected_inside else "inside"
        return (
            f"token {self.token} of sequence {self.sequence} has the id {self.id}, {side} "
            "the interval of ids"
        )


@dataclass(frozen=True)
class ContextualMapping:
    """What was found on a finite set of sequences.

    Attributes:
        verdict: PROVED or REFUTED for this set.
        smallest_gap: Least distance of two ids that must differ; 0 on a collision, None
            when there are fewer than two ids.
        within: Property 6.1: two tokens of one sequence with the same id, or None.
        across: Property 6.2: two sequences that share an id, or None.
        stray: Properties 6.3 and 6.4: an id on the wrong side of [t_l, t_r), or None.
        sequences: How many sequences were checked.
    """

    verdict: Verdict
    smallest_gap: Fraction | None
    within: Collision | None
    across: Collision | None
    stray: Stray | None
    sequences: int

    def __str__(self) -> str:
        """Verdict, gap and witnesses."""
        lines = [f"{self.verdict} on {self.sequences} sequences"]
        if self.smallest_gap is not None:
            lines[0] += f", smallest gap {self.smallest_gap}"
        for label, witness in (
            ("6.1", self.within),
            ("6.2", self.across),
            ("6.3/6.4", self.stray),
        ):
            if witness is not None:
                lines.append(f"  property {label} fails: {witness}")
        return "\n".join(lines)


@implements(YUN2020, "Definition 5.1", "Lemma 6")
def contextual_mapping(
    network_or_map: Network | Callable[[np.ndarray], Any],
    sequences: Any,
    *,
    equivariant: bool | None = None,
    interval: Interval | None = None,
) -> ContextualMapping:
    """Check Definition 5.1 and properties 6.1 to 6.4 on a finite set of sequences.

        6.1  ids within one sequence are distinct
        6.2  sequences (that are not permutations of each other) share no id
        6.3  ids of sequences with distinct tokens inside [0, 1) lie in [t_l, t_r)
        6.4  all other ids lie outside

    For an equivariant map, sequences with repeated tokens or entries below 0 need not be
    told apart (Lemma 6 does not either); 6.4 is all that is asked of them.

    Args:
        network_or_map: A constructed network, of which the contextual map is taken, or any
            function from an array (count, n, d) to ids (count, n). A hardmax network is run
            in exact arithmetic from the quantised state on, a softmax network in float64.
        sequences: Quantised sequences, shape (count, n, d), in the unit cube (positions
            added, for a network that has or makes them). Duplicate rows are refused.
        equivariant: Whether permutations count as the same sequence; read off a network.
        interval: t_l and t_r, for 6.3 and 6.4; read off an equivariant network.

    Returns:
        The verdict, the smallest gap, and a witness for every property that fails.
    """
    states = exact_array(sequences)
    if states.ndim != 3:
        msg = f"sequences has shape {states.shape}; give (count, n, d)."
        raise InputError(msg)
    if isinstance(network_or_map, Network):
        equivariant, interval = _read_off(network_or_map, equivariant, interval)
        ids = _network_ids(network_or_map, states)
    else:
        ids = exact_array(network_or_map(np.asarray(sequences)))
    if ids.shape != states.shape[:2]:
        msg = f"The map returned ids of shape {ids.shape} for {states.shape[:2]} tokens."
        raise InputError(msg)
    keys = [_key(state, equivariant or False) for state in states]
    _refuse_repeats(keys)
    promised = [not equivariant or _is_category_1(state) for state in states]
    within, across, gap = _collisions(states, ids, promised)
    stray = None if interval is None else _stray(ids, promised, interval)
    fine = within is None and across is None and stray is None
    return ContextualMapping(
        verdict=Verdict.PROVED if fine else Verdict.REFUTED,
        smallest_gap=gap,
        within=within,
        across=across,
        stray=stray,
        sequences=len(states),
    )


def _read_off(
    network: Network, equivariant: bool | None, interval: Interval | None
) -> tuple[bool, Interval | None]:
    construction = network.construction
    if construction is None:
        msg = (
            "This network says nothing about its construction, so its contextual map is "
            "not known. Give a function from sequences to ids instead."
        )
        raise InputError(msg)
    if construction.theorem not in ("Theorem 1", "Theorem 2", "Theorem 3"):
        msg = (
            f"This network was made by {construction.theorem!r}, whose ids are sums, not "
            "contextual maps of Lemma 6. Give a function from sequences to ids instead."
        )
        raise InputError(msg)
    if equivariant is None:
        equivariant = construction.theorem == "Theorem 2"
    if interval is None and construction.theorem == "Theorem 2":
        assert construction.ids is not None, "selective shifts have ids"  # noqa: S101
        interval = (construction.ids.low, construction.ids.high)
    return equivariant, interval


def _network_ids(network: Network, states: np.ndarray) -> np.ndarray:
    """Ids after the contextual map, from states that are quantised already."""
    kinds = [stage.kind for stage in network.stages]
    first = kinds.index("quantise") + 1
    last = max(kinds.index(kind) for kind in CONTEXT_STAGES if kind in kinds)
    # A part of a sparse network: its blocks keep their masks, whatever their number is.
    architecture = replace(network.architecture, pattern=None)
    context = Network(architecture, network.stages[first : last + 1])
    if network.architecture.normaliser == "hardmax":
        result = context.exact(states)
    else:
        floats = states.astype(np.float64)
        if (exact_array(floats) != states).any():
            msg = "A softmax network runs in float64, which cannot hold these sequences."
            raise NumberKindError(msg)
        result = exact_array(context(floats))
    ids = network.ids(result)
    assert ids is not None, "checked in _read_off"  # noqa: S101
    return ids


def _key(state: np.ndarray, equivariant: bool) -> tuple[Any, ...]:
    tokens = [tuple(token) for token in state]
    return tuple(sorted(tokens)) if equivariant else tuple(tokens)


def _refuse_repeats(keys: Sequence[tuple[Any, ...]]) -> None:
    seen: dict[tuple[Any, ...], int] = {}
    for number, key in enumerate(keys):
        if key in seen:
            msg = (
                f"Sequences {seen[key]} and {number} are the same (up to order, for an "
                "equivariant map); their ids agree by necessity. Give each once."
            )
            raise InputError(msg)
        seen[key] = number


def _is_category_1(state: np.ndarray) -> bool:
    """All entries at least 0, all tokens different (Category 1 of Lemma 6)."""
    tokens = {tuple(token) for token in state}
    return len(tokens) == len(state) and bool((state >= 0).all())


def _collisions(
    states: np.ndarray, ids: np.ndarray, promised: Sequence[bool]
) -> tuple[Collision | None, Collision | None, Fraction | None]:
    """Sort all promised ids; neighbours decide gap and collisions."""
    entries = sorted(
        (Fraction(value), number, token)
        for number, row in enumerate(ids)
        if promised[number]
        for token, value in enumerate(row)
    )
    within = across = None
    gap = None
    for (low, *first), (high, *second) in pairwise(entries):
        distance = high - low
        gap = distance if gap is None else min(gap, distance)
        if distance > 0:
            continue
        same = first[0] == second[0]
        if (within if same else across) is not None:
            continue
        collision = Collision(
            (first[0], first[1]),
            (second[0], second[1]),
            low,
            (states[first[0]].tolist(), states[second[0]].tolist()),
        )
        within, across = (collision, across) if same else (within, collision)
    return within, across, gap


def _stray(ids: np.ndarray, promised: Sequence[bool], interval: Interval) -> Stray | None:
    low, high = interval
    for number, row in enumerate(ids):
        for token, value in enumerate(row):
            if (low <= value < high) != promised[number]:
                return Stray(number, token, Fraction(value), promised[number])
    return None


def _show(sequence: list[Any]) -> str:
    tokens = (f"({', '.join(str(entry) for entry in token)})" for token in sequence)
    return f"[{' '.join(tokens)}]"
