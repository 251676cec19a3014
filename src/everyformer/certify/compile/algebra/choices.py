"""Choices: rule R5 for where(c, a, b), which is a if c > 0, else b.

    where(c, a, b) = b + k max{c, 0}      if a - b = k c, k rational, where c > 0
    where(c, a, b) = a - k max{-c, 0}     if b - a = k c where c <= 0
    where(min{p, q}, a, b) = where(p, where(q, a, b), b), for truth values p and q, that is
    where(max{p, q}, a, b) = where(p, a, where(q, a, b)), choices of 1 and 0

*Where c > 0* a choice or a maximum in a or b may be decided: with d = alpha c + beta,
max{s, t} is s if d = s - t has alpha, beta >= 0, and t if both are <= 0; where(d, s, t) is
the same. For c <= 0 the sign of alpha is the other one; d > 0 then needs beta > 0. So clips
that are written as one choice inside another are seen to be relu(t) - relu(t - 1).

Only the branch taken need be defined. If a - b = k c after such decisions, what is left of
b has no other atoms than a and c have, and what was decided is a maximum of functions of c,
or a choice, which is defined where the branch that it takes is. So b + k max{c, 0} is
defined where the branch taken is, and so is a - k max{-c, 0}.
"""

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction

from everyformer.certify.compile.algebra.ramps import Ramps
from everyformer.certify.compile.algebra.terms import Term

MAX_DECIDED = 8
"""Maxima and choices that are decided one after the other."""


class Choices(Ramps):
    """Quotients and ramps with choices; maxima come with `Extremes`."""

    @abstractmethod
    def relu(self, a: Term) -> Term:
        """max{a, 0}."""

    @abstractmethod
    def pieces(self, c: Term, a: Term, b: Term) -> Term | None:
        """The choice as a sum of its pieces, if they are seen to meet."""

    def where(self, c: Term, a: Term, b: Term) -> Term:
        """A if c > 0, else b."""
        if a is b:
            return a
        number = self.rational(c)
        if number is not None:
            return a if number > 0 else b
        opened = self._of_truth_values(c, a, b)
        if opened is not None:
            return opened
        for positive, first, second, sign in ((True, a, b, 1), (False, b, a, -1)):
            gap = self.sub(self.given(first, c, positive), self.given(second, c, positive))
            k = self._multiple(gap, c)
            if k is not None:
                ramp = self.relu(c if sign > 0 else self.neg(c))
                return self.add(second, self.scaled(ramp, sign * k))
        met = self.pieces(c, a, b)
        if met is not None:
            return met
        scalar, condition = self.primitive(c)
        if scalar < 0:
            condition = self.neg(condition)
        return self.atom_term("where", (condition, a, b))

    def _multiple(self, a: Term, c: Term) -> Fraction | None:
        """The number k of a = k c, if there is one."""
        if a is self.zero:
            return Fraction(0)
        (s, p), (t, q) = self.primitive(a), self.primitive(c)
        return s / t if p is q else None

    def _of_truth_values(self, c: Term, a: Term, b: Term) -> Term | None:
        """The choice by single conditions, if c is made of truth values; else None."""
        found = self._single_atom(c)
        if found is None or c.coefficient(min(c.numerators)) != 1:
            return None
        name, parts = found
        if name == "where" and self._truth(c) is not None:
            condition, yes, _ = parts
            return self.where(condition, *((a, b) if yes is self.one else (b, a)))
        if name not in ("min", "max") or any(self._truth(t) is None for t in parts):
            return None
        result = a if name == "min" else b
        for part in parts:
            pair = (result, b) if name == "min" else (a, result)
            result = self.where(part, *pair)
        return result

    def _truth(self, t: Term) -> bool | None:
        """Whether a choice of 1 and 0 is 1 where its condition holds; None: no choice."""
        found = self._single_atom(t)
        if found is None or found[0] != "where" or t.coefficient(min(t.numerators)) != 1:
            return None
        _, yes, no = found[1]
        known = {(self.one, self.zero): True, (self.zero, self.one): False}
        return known.get((yes, no))

    def _single_atom(self, t: Term) -> tuple[str, Sequence[Term]] | None:
        """The name and the arguments of an atom that t is a multiple of."""
        if len(t) != 1:
            return None
        atom = self.single_atom(min(t.numerators))
        return None if atom is None else self.atom_parts(atom)

    def given(self, t: Term, c: Term, positive: bool) -> Term:
        """A term that is t wherever c > 0, or wherever c <= 0."""
        for _ in range(MAX_DECIDED):
            for m, k in t.numerators.items():
                chosen = self._decided(m, c, positive)
                if chosen is not None:
                    rest = {n: q for n, q in t.numerators.items() if n != m}
                    left = self.term(rest, t.denominator)
                    t = self.add(left, self.scaled(chosen, Fraction(k, t.denominator)))
                    break
            else:
                return t
        return t

    def _decided(self, monomial: int, c: Term, positive: bool) -> Term | None:
        """What a maximum of two, or a choice, is where c has this sign."""
        atom = self.single_atom(monomial)
        if atom is None:
            return None
        name, parts = self.atom_parts(atom)
        if name == "where":
            d, first, second = parts
        elif name in ("max", "min") and len(parts) == 2:
            first, second = parts if name == "max" else parts[::-1]
            d = self.sub(parts[0], parts[1])
        else:
            return None
        sign = self._sign(d, c, positive, strict=name == "where")
        return None if sign is None else first if sign > 0 else second

    def _sign(self, d: Term, c: Term, positive: bool, *, strict: bool) -> int | None:
        """1 if d > 0 (>= 0 unless strict) where c has its sign, -1 if d <= 0 there."""
        delta, gamma = d.coefficient(0), c.coefficient(0)
        slope = self.sub(d, self.constant(delta))
        alpha = self._multiple(slope, self.sub(c, self.constant(gamma)))
        if alpha is None:
            return None
        beta = delta - alpha * gamma
        up = alpha if positive else -alpha  # d - beta has this sign
        if up <= 0 and beta <= 0:
            return -1
        if up >= 0 and beta >= 0 and (not strict or beta > 0 or (positive and up > 0)):
            return 1
        return None

    def rational(self, t: Term) -> Fraction | None:
        """The number, if t is one."""
        if t is self.zero:
            return Fraction(0)
        return t.coefficient(0) if len(t) == 1 and 0 in t.numerators else None
