"""Quotients, square roots and softmax: rules R3 and R4.

    R3  1 / (s m D) = (1/s) m^-1 inv(D): s rational, m a monomial, D a sum
    R4  the factor exp(g) of a sum of exponentials goes to m: for each monomial in the
        exponents, g has the coefficient that occurs most often (the smallest of several)

R4 is what makes softmax weights canonical: exp(h) for any h common to all scores goes to g,
be it a part of the scores that belongs to the query alone or minus their maximum.

What a monomial with these atoms may be opened to, with the definedness each step uses:

    inv(D)^-k = D^k                 D is defined; inv(D) is, and so D is not 0
    sqrt(p)^2 = p, sqrt(p)^-2 = 1/p p >= 0 since sqrt(p) is defined; p != 0 for the second
    M inv(a L + b R) = (1/a) (M/L) (1 - b R inv(a L + b R)) for a sum of two monomials, if
                                    every atom of L is in M with at least the same exponent,
                                    so that M/L has no new divisor; exp is never 0

    s (c_1 L_1 + .. + c_k L_k) M inv(c_1 L_1 + .. + c_k L_k) = s M, in a sum that holds all
                                    of these monomials, since D inv(D) = 1. Softmax weights
                                    add up to 1 by it. M has no divisor that they do not
                                    have: what all L_i have in common was taken out of D

With the last but one 1/(1 + e^-t), e^t/(1 + e^t), 1 - 1/(1 + e^t), (1 + tanh(t/2))/2 agree.
sqrt(p^2) is an atom: it is neither p nor |p| here.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

from everyformer.certify.compile.algebra.terms import (
    MAX_BITS,
    MAX_EXPANDED,
    MAX_EXPONENT,
    Factors,
    Polynomials,
    Term,
    common_denominator,
    merged,
)

MAX_STEPS = 8
"""M inv(a L + b R) is opened where M holds at most so many powers of L."""

MAX_OPENED = 1024
"""Steps by which one product is opened; one that needs more stays closed."""

MAX_POWER_BITS = 1 << 20
"""Bits of a power of a number."""

MIN_COMPLETE = 3
"""Sums of fewer monomials are not searched for c_i L_i inv(D)."""

MAX_SEARCHED = 64
"""Longer ones are searched for D that are sums of exponentials alone."""

MAX_CLEARED = 16
"""Divisors inside of a divisor that are multiplied out, one after the other."""


@dataclass(frozen=True)
class Binomial:
    """a L + b R, a sum of two monomials without common factors, and what leads in L.

    Attributes:
        factors: The atoms of L and R.
        exponents: What stands under exp in L and R.
        coefficients: a and b.
        leading: The first monomial in the exponents, if L and R have no atoms.
        step: How much more of it L has than R; R has 0.
    """

    factors: tuple[Factors, Factors]
    exponents: tuple[Term | None, Term | None]
    coefficients: tuple[int, int]
    leading: int | None
    step: Fraction


Monomial = tuple[Factors, Term | None]
"""Factors times exp(term); None stands for exp(0)."""

Product = tuple[Fraction, Factors, Term | None]
"""A rational number times factors times exp(term)."""


class Quotients(Polynomials):
    """Polynomial arithmetic with quotients and square roots."""

    def __init__(self, *limit: int) -> None:
        """Begin without any."""
        super().__init__(*limit)
        self._binomials: dict[int, Binomial | None] = {}
        self._divisors: dict[int, list[tuple[int, int]]] = {}
        self._softmax: set[int] = set()
        self._divisors_in: dict[int, tuple[int, ...]] = {}
        self._inverses: dict[int, Term] = {}

    def exp(self, a: Term) -> Term:
        """The exponential, a monomial."""
        if a is self.zero:
            return self.one
        return self.term({self.monomial((), a): 1}, 1)

    def div(self, a: Term, b: Term) -> Term:
        """A / b, defined where b is not 0; b / b = 1 there.

        A divisor that is the number 0 is an atom: such an f is defined nowhere.
        """
        if b is self.zero:
            return self.atom_term("div", (a, b))
        if len(b) == 1 and 0 in b.numerators:
            return self.scaled(a, Fraction(b.denominator, b.numerators[0]))
        if self._may_be_multiples(a, b):
            (s, m, rest), (t, n, other) = self.content(a), self.content(b)
            if rest is other:
                ratio = self.mul(self._power(m, 1), self._power(n, -1))
                return self.scaled(ratio, s / t)
        return self.mul(a, self.inverse(b))

    def _may_be_multiples(self, a: Term, b: Term) -> bool:
        """Whether a = s m b is possible for a number s and a monomial m, at a glance."""
        if not len(a) == len(b) > 1:
            return False
        first, second = map(self.parts, a.numerators), map(self.parts, b.numerators)
        return len({factors for factors, _ in first}) == len({f for f, _ in second})

    def inverse(self, a: Term) -> Term:
        """1 / a by R3 and R4. a must not be the number 0."""
        found = self._inverses.get(a.serial)
        if found is None:
            scalar, monomial, rest = self.content(a)
            result = self._power(monomial, -1)
            if rest is not self.one:
                result = self.mul(result, self._reciprocal(rest))
            found = self._inverses[a.serial] = self.scaled(result, 1 / scalar)
        return found

    def _reciprocal(self, rest: Term) -> Term:
        """inv(D) for a sum without content: the atom D with the exponent -1."""
        atom = self.atom("sum", (rest,))
        if atom not in self.simplified_atoms:
            self.simplified_atoms.add(atom)
            self._binomials[atom] = self._binomial(rest)
            if len(rest) > 2:
                self._divisors[atom] = sorted(rest.numerators.items())
                if not any(self.parts(m)[0] for m in rest.numerators):
                    self._softmax.add(atom)
        return self.power_of(atom, -1)

    def completed(self, a: Term) -> Term:
        """The sum with s M in place of s c_i L_i M inv(D) for all i, D = sum c_i L_i."""
        if not self._divisors or len(a) < MIN_COMPLETE:
            return a
        for atom, members in self._members(a):
            parts = self._divisors[atom]
            for m in members:
                shorter = self._shortened(a, atom, m, parts)
                if shorter is not None:
                    return self.completed(shorter)
        return a

    def _members(self, a: Term) -> Iterable[tuple[int, list[int]]]:
        """For each divisor monomials among which all c_i L_i M inv(D) may be.

        If all L_i are exponentials these have the same atoms.
        """
        self.spend(1 + (len(a) >> 3))
        found: dict[tuple[int, Factors], list[int]] = {}
        for m in self.special_among(a.numerators):
            divisors = self._divisors_in.get(m)
            if divisors is None:
                factors, _ = self.parts(m)
                divisors = tuple(k for k, e in factors if e < 0 and k in self._divisors)
                self._divisors_in[m] = divisors
            for atom in divisors:
                same = self.parts(m)[0] if atom in self._softmax else ()
                found.setdefault((atom, same), []).append(m)
        for (atom, _), members in found.items():
            some = len(self._divisors[atom])
            if some <= len(members) and (atom in self._softmax or len(a) <= MAX_SEARCHED):
                yield atom, members

    def _shortened(
        self, a: Term, atom: int, first: int, parts: list[tuple[int, int]]
    ) -> Term | None:
        """The sum less s M D inv(D) plus s M, if `first` is L_1 M inv(D) and all are there.

        s is the share that most of them have, the smallest of several: at least one of them
        is gone then. They are looked for and not made: what is not there is not complete.
        """
        factors, exponent = self._times(self.parts(first), parts[0][0], -1)
        shares: dict[int, tuple[Fraction, int]] = {}
        for L, c in parts:
            m = self.known_monomial(*self._times((factors, exponent), L, 1))
            if m is None or m not in a.numerators or m in shares:
                return None
            shares[m] = (Fraction(a.numerators[m], c), c)
        counts = Counter(share for share, _ in shares.values())
        s = min(counts, key=lambda share: (-counts[share], share))
        by = s.denominator
        left = {m: k * by for m, k in a.numerators.items()}
        for m, (_, c) in shares.items():
            left[m] -= s.numerator * c
        whole = self.monomial(merged(factors, ((atom, 1),)), exponent)
        left[whole] = left.get(whole, 0) + s.numerator
        return self.term(left, a.denominator * by)

    def _times(self, product: Monomial, L: int, sign: int) -> Monomial:
        """A monomial times, or over, another one; its factors as they are."""
        more, under = self.parts(L)
        factors = merged(product[0], tuple((atom, sign * k) for atom, k in more))
        if under is not None and sign < 0:
            under = self.neg(under)
        return factors, self.exponents_sum(product[1], under)

    def sqrt(self, a: Term) -> Term:
        """The root of a, an atom; the sum 0 and the number 1 are their own roots."""
        if a is self.zero or a is self.one:
            return a
        atom = self.atom("sqrt", (a,))
        self.simplified_atoms.add(atom)
        return self.power_of(atom)

    def pow(self, a: Term, k: int) -> Term:
        """a^k; a^0 = 1. Negative powers are powers of 1 / a."""
        if k < 0:
            if a is self.zero:
                return self.atom_term("pow", (a,), k)
            return self.pow(self.inverse(a), -k)
        if len(a) == 1:
            ((monomial, c),) = a.numerators.items()
            if max(c.bit_length(), a.denominator.bit_length()) * k > MAX_POWER_BITS:
                self.refuse_size("a power of a long number")
            scalar = Fraction(c, a.denominator) ** k
            return self.scaled(self._power(self.parts(monomial), k), scalar)
        result = a if k else self.one
        for _ in range(k - 1):
            result = self.mul(result, a)
        return result

    def _power(self, monomial: Monomial, k: int) -> Term:
        """A monomial to the power of any integer, opened where rules apply."""
        factors, exponent = monomial
        if any(abs(e * k) > MAX_EXPONENT for _, e in factors):
            self.refuse_size(f"an exponent beyond {MAX_EXPONENT}")
        factors = tuple((atom, e * k) for atom, e in factors) if k else ()
        if exponent is not None:
            exponent = self.scaled(exponent, Fraction(k)) if k else None
        product = self.simplified(factors, exponent)
        return self.term({product: 1}, 1) if isinstance(product, int) else product

    def common(self, terms: Sequence[Term | None]) -> Term:
        """R4: for each monomial its most frequent coefficient, the smallest of several.

        For terms t_k + h with any h this is the same for all k plus h: what is left after
        subtracting it does not depend on h. None stands for 0.
        """
        present = [t for t in terms if t is not None]
        self.spend(sum(map(len, present)))
        occurrences = Counter(chain.from_iterable(t.numerators for t in present))
        denominator = common_denominator(t.denominator for t in present)
        chosen: dict[int, int] = {}
        for m, occurs in occurrences.items():
            absent = len(terms) - occurs
            if absent > occurs:
                continue
            seen = Counter(
                t.numerators[m] * (denominator // t.denominator)
                for t in present
                if m in t.numerators
            )
            if absent:
                seen[0] = absent
            chosen[m] = min(seen, key=lambda value, seen=seen: (-seen[value], value))
        return self.term(chosen, denominator)

    def content(self, a: Term) -> tuple[Fraction, Monomial, Term]:
        """The parts s, m, D of a = s m D: a number, a monomial and a sum, or D = 1.

        m has every atom's least exponent, where atoms that a monomial lacks have 0, and
        R4's exp(g); D has coprime integers, the first one positive. Divisors inside of a
        that are short are multiplied out: the least exponent of inv(E) is its negative
        power. a = s m D wherever a is defined: negative exponents are a's own.
        """
        scalar, rest = self.primitive(a)
        factors: Factors = ()
        exponent: Term | None = None
        for _ in range(MAX_CLEARED):
            if len(rest) == 1:
                (last,) = rest.numerators
                more, under = self.parts(last)
                rest = self.one
            else:
                more, under = self._common_monomial(rest)
                if not more and under is None:
                    break
                cleared = self.mul(rest, self._power((more, under), -1))
                if cleared is self.zero:  # a is 0 everywhere
                    break
                s, rest = self.primitive(cleared)
                scalar *= s
            factors = merged(factors, more)
            exponent = self.exponents_sum(exponent, under)
            if rest is self.one:
                break
        return scalar, (factors, exponent), rest

    def _common_monomial(self, a: Term) -> Monomial:
        """Every atom's least exponent, and R4's g under exp."""
        monomials = [self.parts(m) for m in a.numerators]
        total = len(monomials)
        self.spend(total)
        powers: dict[int, list[int]] = {}
        for factors, _ in monomials:
            for atom, k in factors:
                powers.setdefault(atom, []).append(k)
        least: list[tuple[int, int]] = []
        for atom, ks in sorted(powers.items()):
            k = min(ks) if len(ks) == total else min(*ks, 0)
            if k and (k > 0 or self._may_be_cleared(atom, k, total)):
                least.append((atom, k))
        exponents = [exponent for _, exponent in monomials]
        g = self.zero if exponents == [None] * total else self.common(exponents)
        return tuple(least), None if g is self.zero else g

    def _may_be_cleared(self, atom: int, k: int, total: int) -> bool:
        """Whether a sum of so many monomials is multiplied by atom^-k."""
        name, arguments = self.atom_parts(atom)
        if name != "sum":
            return True
        return k == -1 and len(arguments[0]) * total <= MAX_EXPANDED

    def _binomial(self, a: Term) -> Binomial | None:
        """A sum of two monomials, with L the one that holds the first atom or exponent."""
        if len(a) != 2:
            return None
        parts = [(self.parts(m), c) for m, c in a.numerators.items()]
        atoms = [atom for (factors, _), _ in parts for atom, _ in factors]
        leading, step = None, Fraction(0)
        if atoms:
            first = min(atoms)
            powers = [dict(factors).get(first, 0) for (factors, _), _ in parts]
            if min(powers) != 0 or max(powers) <= 0:
                return None
            if not powers[0]:
                parts.reverse()
        else:
            keys = [m for (_, e), _ in parts if e is not None for m in e.numerators]
            leading = min(keys)
            left, right = (
                Fraction(0) if e is None else e.coefficient(leading) for (_, e), _ in parts
            )
            if left < right:
                parts.reverse()
            step = abs(left - right)
        ((f, e), c), ((other_f, other_e), other_c) = parts
        return Binomial((f, other_f), (e, other_e), (c, other_c), leading, step)

    def simplified(self, factors: Factors, exponent: Term | None) -> int | Term:
        """Open a product of factors by the rules above, until none applies."""
        opened = self.opened_product((Fraction(1), factors, exponent))
        if opened is None:
            return self.monomial(factors, exponent)
        waiting = list(opened)
        done: list[tuple[Fraction, Term]] = []
        steps = 0
        while waiting:
            steps += 1
            if steps > MAX_OPENED:
                return self.monomial(factors, exponent)
            self.spend(16)
            product = waiting.pop()
            if product[0].denominator.bit_length() > MAX_BITS:
                self.refuse_size("a product of long numbers")
            opened = self.opened_product(product)
            if opened is not None:
                waiting.extend(opened)
                continue
            scalar, rest, under = product
            done.append((scalar, self.term({self.monomial(rest, under): 1}, 1)))
        return self.affine(done, Fraction(0))

    def opened_product(self, product: Product) -> Sequence[Product] | None:
        """A sum that one rule makes of a product, or None."""
        _, factors, _ = product
        for atom, k in factors:
            if atom not in self.simplified_atoms:
                continue
            name, (inside, *_) = self.atom_parts(atom)
            if name == "sqrt" and abs(k) >= 2:
                half = k // 2 if k > 0 else -(-k // 2)
                return self._replaced(product, atom, 2 * half, self.pow(inside, half))
            if name == "sum" and k > 0:
                return self._replaced(product, atom, k, self.pow(inside, k))
            binomial = self._binomials.get(atom)
            if binomial is not None:
                opened = self._divided(product, atom, binomial)
                if opened is not None:
                    return opened
        return None

    def _replaced(self, product: Product, atom: int, k: int, by: Term) -> list[Product]:
        """The product with `by` in place of atom^k."""
        scalar, factors, exponent = product
        return self.expanded((scalar, merged(factors, ((atom, -k),)), exponent), by)

    def expanded(self, product: Product, by: Term) -> list[Product]:
        """The product times a sum, monomial by monomial."""
        scalar, rest, exponent = product
        self.spend(4 * len(by))
        found: list[Product] = []
        for m, c in by.numerators.items():
            more, under = self.parts(m)
            value = scalar * Fraction(c, by.denominator)
            total = self.exponents_sum(exponent, under)
            found.append((value, merged(rest, more), total))
        return found

    def _divided(self, product: Product, atom: int, sum_: Binomial) -> list[Product] | None:
        """M inv(a L + b R) = (1/a) (M/L) (1 - b R inv(a L + b R)), if L divides M.

        Without atoms L always divides M. Then it is done while M has at least as much of
        the leading monomial under exp as L, and with L and R exchanged while it has less
        than 0.
        """
        scalar, factors, exponent = product
        L, R = 0, 1
        if sum_.leading is None:
            powers = dict(factors)
            if any(powers.get(each, 0) < k for each, k in sum_.factors[0]):
                return None
            first, k = sum_.factors[0][0]
            if powers[first] > MAX_STEPS * k:
                return None
        else:
            has = Fraction(0) if exponent is None else exponent.coefficient(sum_.leading)
            if 0 <= has < sum_.step or abs(has) > MAX_STEPS * sum_.step:
                return None
            L, R = (0, 1) if has > 0 else (1, 0)
        a, b = sum_.coefficients[L], sum_.coefficients[R]
        divided = merged(factors, tuple((each, -k) for each, k in sum_.factors[L]))
        under = exponent
        taken = sum_.exponents[L]
        if taken is not None:
            under = self.exponents_sum(under, self.neg(taken))
        whole = merged(divided, ((atom, 1),)), under
        part = (
            merged(divided, sum_.factors[R]),
            self.exponents_sum(under, sum_.exponents[R]),
        )
        return [(scalar / a, *whole), (-scalar * b / a, *part)]
