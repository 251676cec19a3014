"""Terms of real functions: polynomials over monomials, each kept once.

    term      = (1/q) sum_m c_m m,   integers q > 0 and c_m != 0 without a common factor
    monomial  = a_1^k_1 ... a_r^k_r exp(term),   integers k_i != 0
    atom      = an entry of x, or a function of terms that the rules do not open

Terms, monomials and atoms are hash-consed. A term is found by its coefficients, a monomial
by its factors and exponent, an atom by its name and the terms in it: what is written
equally is the same object. A term that nobody holds is forgotten, atoms and monomials are
kept.

Every rule keeps this invariant: *the term is defined wherever the expression it was made
from is defined, and has the same value there.* So two expressions with the same term are
equal wherever both are defined. That f is defined on its box is checked elsewhere: no
divisor is 0, logarithms have positive arguments and square roots arguments >= 0.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from weakref import WeakValueDictionary

from everyformer.certify.undecided import Undecided

LIMIT = 400_000_000
"""Coefficients that one proof may write. Long numbers count more than once."""

KEPT = 8
"""What a coefficient counts in addition where an atom or a monomial keeps its term."""

MAX_BITS = 1 << 15
"""Bits of a coefficient, or of a common denominator."""

MAX_EXPONENT = 4096
"""Size of the exponent of an atom."""

MAX_EXPANDED = 200
"""A product of two sums is expanded if it has at most so many products of monomials."""

Factors = tuple[tuple[int, int], ...]
"""Pairs of an atom and its exponent, in order of the atoms."""


class Term:
    """A real function of the sequence. Compare with `is`; nothing changes it.

    Attributes:
        serial: Its number, never given twice.
        numerators: For each monomial its coefficient, times the denominator.
        denominator: The common denominator.
    """

    __slots__ = ("__weakref__", "denominator", "numerators", "serial")

    def __init__(self, serial: int, numerators: dict[int, int], denominator: int) -> None:
        """Called by the table alone."""
        self.serial = serial
        self.numerators = numerators
        self.denominator = denominator

    def __len__(self) -> int:
        """The number of monomials."""
        return len(self.numerators)

    def __bool__(self) -> bool:
        """A term has no truth value by its length: compare with `is`."""
        return True

    def coefficient(self, monomial: int) -> Fraction:
        """The coefficient of a monomial."""
        return Fraction(self.numerators.get(monomial, 0), self.denominator)


class OpenSum:
    """A sum that is still added to, and that one line alone will read.

    Attributes:
        numerators: As for a term; may hold zeros.
        denominator: The common denominator.
    """

    __slots__ = ("denominator", "numerators")

    def __init__(self, numerators: dict[int, int], denominator: int) -> None:
        """Take over the dictionary."""
        self.numerators = numerators
        self.denominator = denominator


class Polynomials:
    """The tables of terms, monomials and atoms, and polynomial arithmetic (rules R1, R2).

        R1  + - * and scaling; a product of sums is expanded up to `MAX_EXPANDED` products,
            else it is the atom mul(a, b), without rational factors
        R2  exp(p) exp(q) = exp(p + q)

    Both hold wherever the operands are defined.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        """Begin with the numbers 0 and 1."""
        self._left = self._limit = limit
        self._serials = 0
        self._terms: WeakValueDictionary[object, Term] = WeakValueDictionary()
        self._atoms: list[tuple[str, tuple[Term, ...]]] = []
        self._atom_numbers: dict[tuple[object, ...], int] = {}
        self._factors: list[Factors] = []
        self._exponents: list[Term | None] = []
        self._special: list[bool] = []
        self._monomials: dict[tuple[Factors, int], int] = {}
        self._products: dict[tuple[int, int], int | Term] = {}
        self._sums: dict[tuple[int, int], Term | None] = {}
        self.simplified_atoms: set[int] = set()
        self.monomial((), None)
        self.zero = self.term({}, 1)
        self.one = self.term({0: 1}, 1)

    def spend(self, amount: int) -> None:
        """Count the work.

        Raises:
            Undecided: If the proof has done as much as it may.
        """
        self._left -= amount
        if self._left < 0:
            why = (
                f"its normal form needs more than {self._limit} coefficients: the "
                "expression is too large to compare with the network"
            )
            raise Undecided("target", why)

    def term(self, numerators: dict[int, int], denominator: int) -> Term:
        """The term with these coefficients; the dictionary becomes its own."""
        if 0 in numerators.values():
            numerators = {m: c for m, c in numerators.items() if c}
        if denominator != 1:
            common = math.gcd(denominator, *numerators.values())
            if common != 1:
                denominator //= common
                numerators = {m: c // common for m, c in numerators.items()}
        key = (denominator, frozenset(numerators.items()))
        found = self._terms.get(key)
        if found is None:
            self._measure(numerators, denominator)
            self._serials += 1
            found = Term(self._serials, numerators, denominator)
            self._terms[key] = found
        return found

    def _measure(self, numerators: dict[int, int], denominator: int) -> None:
        """Count coefficients by their length, and refuse those that are too long."""
        bits = denominator.bit_length()
        if numerators:
            values = numerators.values()
            bits = max(bits, max(values).bit_length(), min(values).bit_length())
        if bits > MAX_BITS:
            self.refuse_size(f"a coefficient of {bits} bits")
        self.spend(4 + len(numerators) * (1 + (bits >> 8)))

    @staticmethod
    def refuse_size(what: str) -> None:
        """Stop where numbers grow beyond what is worth comparing.

        Raises:
            Undecided: Always.
        """
        raise Undecided("target", f"its normal form has {what}, too long to compare")

    def constant(self, value: Fraction) -> Term:
        """A rational number."""
        number, denominator = value.numerator, value.denominator
        return self.term({0: number} if number else {}, denominator)

    def atom(self, name: str, arguments: tuple[Term, ...], *numbers: object) -> int:
        """The number of an atom, made when it is first asked for."""
        key = (name, *numbers, *(argument.serial for argument in arguments))
        found = self._atom_numbers.get(key)
        if found is None:
            self.spend(4 + sum(KEPT * len(argument) for argument in arguments))
            found = self._atom_numbers[key] = len(self._atoms)
            self._atoms.append((name, arguments))
        return found

    def atom_parts(self, atom: int) -> tuple[str, tuple[Term, ...]]:
        """The name of an atom, and the terms in it."""
        return self._atoms[atom]

    def atom_term(self, name: str, arguments: tuple[Term, ...], *numbers: object) -> Term:
        """An atom as a term."""
        return self.power_of(self.atom(name, arguments, *numbers))

    def power_of(self, atom: int, exponent: int = 1) -> Term:
        """A power of an atom as a term."""
        return self.term({self.monomial(((atom, exponent),), None): 1}, 1)

    def single_atom(self, monomial: int) -> int | None:
        """The atom, if a monomial is an atom as it is; else None."""
        factors, exponent = self.parts(monomial)
        plain = exponent is None and len(factors) == 1 and factors[0][1] == 1
        return factors[0][0] if plain else None

    def monomial(self, factors: Factors, exponent: Term | None) -> int:
        """The number of a monomial, made when it is first asked for."""
        key = (factors, 0 if exponent is None else exponent.serial)
        found = self._monomials.get(key)
        if found is None:
            self.spend(2 + len(factors) + (KEPT * len(exponent) if exponent else 0))
            found = self._monomials[key] = len(self._factors)
            self._factors.append(factors)
            self._exponents.append(exponent)
            special = self.simplified_atoms
            self._special.append(any(atom in special for atom, _ in factors))
        return found

    def known_monomial(self, factors: Factors, exponent: Term | None) -> int | None:
        """The number of a monomial, if there is one."""
        return self._monomials.get((factors, 0 if exponent is None else exponent.serial))

    def special_among(self, monomials: Iterable[int]) -> list[int]:
        """Those that have an atom that rules may open."""
        special = self._special
        return [m for m in monomials if special[m]]

    def parts(self, monomial: int) -> tuple[Factors, Term | None]:
        """The factors of a monomial, and what stands under exp (None: nothing)."""
        return self._factors[monomial], self._exponents[monomial]

    def add(self, a: Term, b: Term) -> Term:
        """A + b."""
        return self._sum(a, b, 1)

    def sub(self, a: Term, b: Term) -> Term:
        """A - b."""
        return self._sum(a, b, -1)

    def neg(self, a: Term) -> Term:
        """The opposite of a."""
        return self.term({m: -c for m, c in a.numerators.items()}, a.denominator)

    def _sum(self, a: Term, b: Term, sign: int) -> Term:
        if a.denominator == b.denominator:
            total, denominator = a.numerators.copy(), a.denominator
        else:
            denominator = math.lcm(a.denominator, b.denominator)
            factor = denominator // a.denominator
            total = {m: c * factor for m, c in a.numerators.items()}
            sign *= denominator // b.denominator
        self.spend(1 + len(b.numerators) + (len(total) >> 3))
        for m, c in b.numerators.items():
            total[m] = total.get(m, 0) + sign * c
        return self.completed(self.term(total, denominator))

    def opened_sum(self, a: Term | OpenSum, b: Term | OpenSum, sign: int) -> OpenSum:
        """A + sign b; sums that are open are used up.

        A chain of n additions takes as many steps as it has coefficients, and not that many
        for each of its n partial sums.

        Raises:
            Undecided: If a denominator is too long.
        """
        if isinstance(a, Term) and isinstance(b, OpenSum) and sign == 1:
            a, b = b, a
        total = a if isinstance(a, OpenSum) else OpenSum(a.numerators.copy(), a.denominator)
        if total.denominator != b.denominator:
            denominator = common_denominator((total.denominator, b.denominator))
            by = denominator // total.denominator
            if by != 1:
                self.spend(len(total.numerators))
                total.numerators = {m: c * by for m, c in total.numerators.items()}
            total.denominator = denominator
            sign *= denominator // b.denominator
        bits = total.denominator.bit_length()
        self.spend(1 + len(b.numerators) * (1 + (bits >> 8)))
        numerators = total.numerators
        for m, c in b.numerators.items():
            numerators[m] = numerators.get(m, 0) + sign * c
        return total

    def closed_sum(self, a: Term | OpenSum) -> Term:
        """The term of a sum."""
        if isinstance(a, Term):
            return a
        return self.completed(self.term(a.numerators, a.denominator))

    def scaled(self, a: Term, factor: Fraction) -> Term:
        """A rational multiple of a."""
        by = factor.numerator
        if not by:
            return self.zero
        numerators = {m: c * by for m, c in a.numerators.items()}
        return self.term(numerators, a.denominator * factor.denominator)

    def affine(self, terms: Iterable[tuple[Fraction, Term]], offset: Fraction) -> Term:
        """The sum of rational multiples of terms, and a number."""
        parts = [(c, t) for c, t in terms if c]
        denominators = (c.denominator * t.denominator for c, t in parts)
        denominator = common_denominator((offset.denominator, *denominators))
        total = {0: offset.numerator * (denominator // offset.denominator)}
        for c, t in parts:
            self.spend(1 + len(t.numerators))
            by = c.numerator * (denominator // (c.denominator * t.denominator))
            for m, k in t.numerators.items():
                total[m] = total.get(m, 0) + by * k
        return self.completed(self.term(total, denominator))

    def completed(self, a: Term) -> Term:
        """A sum that rules may make shorter. Without such rules, itself."""
        return a

    def mul(self, a: Term, b: Term) -> Term:
        """The product, expanded if that is short or a factor has one monomial."""
        if len(a) * len(b) > MAX_EXPANDED and len(a) > 1 and len(b) > 1:
            return self._unexpanded(a, b)
        total: dict[int, int] = {}
        others: list[tuple[Fraction, Term]] = []
        denominator = a.denominator * b.denominator
        self.spend(1 + len(a) * len(b))
        for m, c in a.numerators.items():
            for n, k in b.numerators.items():
                product = self._product(m, n)
                if isinstance(product, int):
                    total[product] = total.get(product, 0) + c * k
                else:
                    others.append((Fraction(c * k, denominator), product))
        result = self.term(total, denominator)
        if others:
            others.append((Fraction(1), result))
            return self.affine(others, Fraction(0))
        return self.completed(result)

    def _unexpanded(self, a: Term, b: Term) -> Term:
        """Rule R1: mul(s a, t b) = s t mul(a, b) for rational s, t; commutative."""
        (s, a), (t, b) = self.primitive(a), self.primitive(b)
        if a.serial > b.serial:
            a, b = b, a
        return self.scaled(self.atom_term("mul", (a, b)), s * t)

    def primitive(self, a: Term) -> tuple[Fraction, Term]:
        """The parts s, a' of a = s a': a' has coprime integers, the first one positive.

        First is the monomial that was made first; so a' is the same for all multiples of a
        by rational numbers. a must not be 0.
        """
        first = a.numerators[min(a.numerators)]
        content = math.gcd(*a.numerators.values())
        by = -content if first < 0 else content
        if by == 1 and a.denominator == 1:
            return Fraction(1), a
        term = self.term({m: c // by for m, c in a.numerators.items()}, 1)
        return Fraction(by, a.denominator), term

    def _product(self, m: int, n: int) -> "int | Term":
        """The product of two monomials: a monomial, or a term where a rule opens it."""
        if not m or not n:
            return m or n
        key = (m, n) if m <= n else (n, m)
        found = self._products.get(key)
        if found is None:
            exponent = self.exponents_sum(self._exponents[m], self._exponents[n])
            factors = merged(self._factors[m], self._factors[n])
            if self._special[m] or self._special[n]:
                found = self.simplified(factors, exponent)
            else:
                found = self.monomial(factors, exponent)
            self._products[key] = found
            self.spend(2)
        return found

    def exponents_sum(self, p: Term | None, q: Term | None) -> Term | None:
        """Rule R2: what stands under exp in exp(p) exp(q); None for exp(0)."""
        if p is None or q is None:
            return p or q
        key = (p.serial, q.serial) if p.serial <= q.serial else (q.serial, p.serial)
        if key in self._sums:
            return self._sums[key]
        total = self.add(p, q)
        found = self._sums[key] = None if total is self.zero else total
        return found

    def simplified(self, factors: Factors, exponent: Term | None) -> "int | Term":
        """A product of factors that rules may open. Without such rules, a monomial."""
        return self.monomial(factors, exponent)


def common_denominator(denominators: Iterable[int]) -> int:
    """The least common multiple.

    Raises:
        Undecided: If it is too long.
    """
    total = 1
    for denominator in denominators:
        total = math.lcm(total, denominator)
        if total.bit_length() > 4 * MAX_BITS:
            Polynomials.refuse_size(f"a denominator of {total.bit_length()} bits")
    return total


def merged(a: Factors, b: Factors) -> Factors:
    """The product of two lists of factors.

    Cancelling a^k a^-k = 1 uses that a is defined and not 0, since a^-k is defined.

    Raises:
        Undecided: If an exponent is too large.
    """
    if not a or not b:
        return a or b
    total = dict(a)
    for atom, k in b:
        total[atom] = total.get(atom, 0) + k
        if abs(total[atom]) > MAX_EXPONENT:
            Polynomials.refuse_size(f"an exponent beyond {MAX_EXPONENT}")
    return tuple(sorted((atom, k) for atom, k in total.items() if k))
