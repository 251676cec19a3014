"""Choices between curved pieces that meet: rule R5 for where(c, a, b), a and b any terms.

Let c = k t + h with a rational k and an atom t, and t0 = -h/k, for which k t + h is 0. With
t+ and t- for which k t + h is max{c, 0} and min{c, 0},

    where(c, a, b) = a(t+) + b(t-) - a(t0)   if a(t0) = b(t0),

a(s) being a with s in the place of t: for c > 0 is t+ = t and t- = t0, for c <= 0 is
t+ = t0 and t- = t. The right side needs a and b at other places than the left one does. All
of them lie between t and t0, so both are enclosed in intervals on the box, with t anywhere
between its own ends and those of t0; the rule is used if all operations are defined there.

    where(c, a, b) = where(p - q, where(c_p, a_p, b_p), where(c_q, a_q, b_q))

with p, and q, in the place of a maximum max{p, q} that c holds (|t| < 1, for instance), is
used if that leaves no choice.
"""

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from everyformer.certify.compile.algebra.extremes import Extremes
from everyformer.certify.compile.algebra.terms import LIMIT, Term
from everyformer.numerics.intervals import Interval, IntervalArithmetic
from everyformer.targets.box import Box

MAX_REPLACED = 400
"""Monomials in which an atom is replaced, those inside of atoms counted."""

MAX_CASES = 2
"""Maxima in a condition that are told apart, one inside the other."""

KEPT_IN_PLACE = frozenset({"max", "min", "where", "sqrt", "log", "sin", "cos", "xlogx"})
"""Atoms that are operations of the algebra with their name."""


class _Closed(Exception):  # noqa: N818 (it says why, and nobody sees it)
    """A term holds what is not opened here."""


class Pieces(Extremes):
    """Extremes, with choices between curved pieces on a box.

    Args:
        limit: Coefficients that may be written before a proof is given up.
        box: The domain of a token. Without one these choices stay what they are.
    """

    def __init__(self, limit: int = LIMIT, box: Box | None = None) -> None:
        """Begin with no terms but numbers."""
        super().__init__(limit)
        self._box = box
        self._entries: dict[int, tuple[int, int]] = {}
        self._cases = 0

    def entry(self, token: int, coordinate: int) -> Term:
        """x[token][coordinate]."""
        atom = self.atom("x", (), token, coordinate)
        self._entries[atom] = (coordinate, token)
        return self.power_of(atom)

    @abstractmethod
    def function(self, name: str, arguments: Sequence[Term]) -> Term:
        """An operation by its name."""

    def pieces(self, c: Term, a: Term, b: Term) -> Term | None:
        """The choice as a sum of its pieces, if they are seen to meet; else None."""
        if self._box is None:
            return None
        size = sum(map(len, (c, a, b)))
        if size > MAX_REPLACED:
            return None
        for atom in self._linear_atoms(c):
            try:
                found = self._met(atom, c, a, b)
            except _Closed:
                continue
            if found is not None:
                return found
        return self._by_cases(c, a, b)

    def _linear_atoms(self, c: Term) -> list[int]:
        """Atoms that c holds as they are; entries of x last, the last entry first."""
        entries = self._entries
        return sorted(
            (k for m in c.numerators if (k := self.single_atom(m)) is not None),
            key=lambda k: (k not in entries, entries.get(k, (k, 0))),
            reverse=True,
        )

    def _met(self, atom: int, c: Term, a: Term, b: Term) -> Term | None:
        """a(t+) + b(t-) - a(t0), if a(t0) is b(t0) and all of that is defined."""
        m = self.monomial(((atom, 1),), None)
        t, k = self.term({m: 1}, 1), c.coefficient(m)
        t0 = self.sub(t, self.scaled(c, 1 / k))
        here = self._replaced_in(a, atom, t0)
        if here is not self._replaced_in(b, atom, t0):
            return None
        middle = _hull(self._enclosed(t, {}), self._enclosed(t0, {}))
        for piece in (a, b):
            self._enclosed(piece, {atom: middle})
        up = self.scaled(self.relu(c), 1 / k)
        down = self.scaled(self.min(c, self.zero), 1 / k)
        above = self._replaced_in(a, atom, self.add(t0, up))
        below = self._replaced_in(b, atom, self.add(t0, down))
        return self.sub(self.add(above, below), here)

    def _by_cases(self, c: Term, a: Term, b: Term) -> Term | None:
        """The choice in both cases of a maximum in its condition, if that opens it."""
        if self._cases >= MAX_CASES:
            return None
        self._cases += 1
        try:
            for atom in self._linear_atoms(c):
                name, parts = self.atom_parts(atom)
                if name != "max" or len(parts) != 2:
                    continue
                sides: list[Term] = []
                for part in parts:
                    condition, first, second = (
                        self._replaced_in(t, atom, part) for t in (c, a, b)
                    )
                    for piece in (condition, first, second):
                        self._enclosed(piece, {})
                    sides.append(self.where(condition, first, second))
                if not any(self._has_choice(side) for side in sides):
                    whole = self.where(self.sub(*parts), *sides)
                    return None if self._has_choice(whole) else whole
        except _Closed:
            return None
        finally:
            self._cases -= 1
        return None

    def _has_choice(self, t: Term) -> bool:
        """Whether a factor of a monomial is a choice."""
        factors = (atom for m in t.numerators for atom, _ in self.parts(m)[0])
        return any(self.atom_parts(atom)[0] == "where" for atom in factors)

    def _replaced_in(self, t: Term, atom: int, by: Term) -> Term:
        """The term with another one in the place of an atom.

        Raises:
            _Closed: If it is long, or has atoms that are not opened here.
        """
        return _Replacement(self, atom, by).of(t)

    def _enclosed(self, t: Term, places: dict[int, Interval]) -> Interval:
        """An interval that holds the term on the box, with atoms where it is told.

        Raises:
            _Closed: If an operation in it may not be defined there.
        """
        assert self._box is not None, "asked for on a box alone"  # noqa: S101
        return _Ranges(self, self._entries, self._box, places).of(t)


class _Replacement:
    """Terms with another one in the place of an atom, each made once."""

    def __init__(self, algebra: Pieces, atom: int, by: Term) -> None:
        self._algebra, self._left = algebra, MAX_REPLACED
        self._terms: dict[Term, Term] = {}
        self._atoms: dict[int, Term] = {atom: by}

    def of(self, t: Term) -> Term:
        """The term."""
        found = self._terms.get(t)
        if found is None:
            algebra = self._algebra
            parts = [(t.coefficient(m), self._monomial(m)) for m in t.numerators]
            found = self._terms[t] = algebra.affine(parts, Fraction(0))
        return found

    def _monomial(self, m: int) -> Term:
        algebra = self._algebra
        self._left -= 1
        if self._left < 0:
            raise _Closed
        factors, exponent = algebra.parts(m)
        found = algebra.one if exponent is None else algebra.exp(self.of(exponent))
        for atom, k in factors:
            found = algebra.mul(found, algebra.pow(self._atom(atom), k))
        return found

    def _atom(self, atom: int) -> Term:
        found = self._atoms.get(atom)
        if found is None:
            algebra = self._algebra
            name, arguments = algebra.atom_parts(atom)
            if name == "x":
                found = algebra.power_of(atom)
            elif name in KEPT_IN_PLACE or name in {"mul", "sum"}:
                parts = [self.of(argument) for argument in arguments]
                found = parts[0] if name == "sum" else algebra.function(name, parts)
            else:
                raise _Closed
            self._atoms[atom] = found
        return found


class _Ranges:
    """Intervals of terms on the box, where every operation in them is defined."""

    def __init__(
        self,
        algebra: Pieces,
        entries: dict[int, tuple[int, int]],
        box: Box,
        places: dict[int, Interval],
    ) -> None:
        self._algebra, self._entries, self._box = algebra, entries, box
        self._atoms, self._terms = dict(places), dict[Term, Interval]()
        self._left = MAX_REPLACED

    def of(self, t: Term) -> Interval:
        """The term."""
        found = self._terms.get(t)
        if found is None:
            found = IntervalArithmetic.constant(Fraction(0))
            for m in t.numerators:
                c = IntervalArithmetic.constant(t.coefficient(m))
                part = IntervalArithmetic.mul(self._monomial(m), c)
                found = IntervalArithmetic.add(found, part)
            found = self._terms[t] = _defined(found)
        return found

    def _monomial(self, m: int) -> Interval:
        self._left -= 1
        if self._left < 0:
            raise _Closed
        factors, exponent = self._algebra.parts(m)
        found = IntervalArithmetic.constant(Fraction(1))
        if exponent is not None:
            found = IntervalArithmetic.exp(self.of(exponent))
        for atom, k in factors:
            power = IntervalArithmetic.pow(self._atom(atom), k)
            found = IntervalArithmetic.mul(found, _defined(power))
        return _defined(found)

    def _atom(self, atom: int) -> Interval:
        found = self._atoms.get(atom)
        if found is None:
            name, arguments = self._algebra.atom_parts(atom)
            if name == "x":
                i, _ = self._entries[atom]
                ends = self._box.lows[i], self._box.highs[i]
                found = Interval(*(np.array([[end]]) for end in ends))
            else:
                found = _range_of(name, [self.of(argument) for argument in arguments])
            self._atoms[atom] = found = _defined(found)
        return found


def _range_of(name: str, parts: list[Interval]) -> Interval:
    """The range of an atom.

    Raises:
        _Closed: If it has none that is known.
    """
    if name == "sum":
        return parts[0]
    if name == "where":  # both branches, whatever the condition
        return _hull(parts[1], parts[2])
    if name in {"max", "min"}:
        found = parts[0]
        for part in parts[1:]:
            found = getattr(IntervalArithmetic, name)(found, part)
        return found
    if name not in KEPT_IN_PLACE and name != "mul":
        raise _Closed
    return getattr(IntervalArithmetic, name)(*parts)


def _defined(a: Interval) -> Interval:
    """The interval, if it says anything.

    Raises:
        _Closed: If the value may not exist.
    """
    if not (np.isfinite(a.low).all() and np.isfinite(a.high).all()):
        raise _Closed
    return a


def _hull(a: Interval, b: Interval) -> Interval:
    """The smallest interval around both."""
    return Interval(np.minimum(a.low, b.low), np.maximum(a.high, b.high))
