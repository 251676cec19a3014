"""Products and normalised values, as they are read from squares (G3 and G5)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from everyformer.certify.compile.claims import Normalise, Product
from everyformer.certify.compile.rounded import down, up
from everyformer.certify.compile.rows import BlockWeights
from everyformer.certify.compile.unary_heads import ROOT, SQUARE, Made
from everyformer.certify.compile.values import Pair, State, Value
from everyformer.numerics.rationals import power_up

HALF, ZERO = Fraction(1, 2), Fraction(0)


@dataclass(frozen=True)
class Factor:
    """An affine form of the registers of one state, with exact coefficients."""

    form: Mapping[int, Fraction]
    offset: Fraction


@dataclass(frozen=True)
class Multiplied:
    """A product of two factors that a slot computed.

    Attributes:
        plus: The register of the first square.
        minus: That of the second.
        first: a.
        second: b.
        value: a b.
        error: |(p - m)/4 - a^ b^| in real arithmetic, a^ and b^ what a run has for them.
        run_error: The same in float64.
    """

    plus: int
    minus: int
    first: Factor
    second: Factor
    value: Value
    error: Fraction
    run_error: Fraction

    @property
    def pair(self) -> Pair:
        """What readers of the two registers need."""
        return Pair(self.minus, self.value)


def misread_square(F: Made, *, run: bool) -> Fraction:
    """|register - F^2| at the F of a run: (F + d)^2 - F^2 = (2 F + d) d, and the head's."""
    size = F.before.form(F.form, F.offset).size
    d = F.misread + (F.rounding if run else 0)
    return (2 * size + d) * d + F.error + (F.lost if run else 0)


def multiply(
    block: BlockWeights, claim: Product, made: Mapping[int, Made], before: State
) -> Multiplied:
    """Two squares of one slot as the product (F^2 - G^2) / 4 = a b.

    F = l a + b/l and G = l a - b/l are forms of the same registers at the same time, so in
    every run F^^2 - G^^2 = 4 a^ b^, and |a^ b^ - a b| <= |a| e_b + |b| e_a + e_a e_b.
    """
    plus, minus = claim.registers
    F, G, balance = made.get(plus), made.get(minus), claim.balance
    if plus == minus or F is None or G is None or {F.power, G.power} != {SQUARE}:
        raise block.undecided("a product is claimed of registers that are not squares")
    names = dict.fromkeys((*F.form, *G.form))
    pairs = [(k, F.form.get(k, ZERO), G.form.get(k, ZERO)) for k in names]
    first = Factor(
        {k: (f + g) / (2 * balance) for k, f, g in pairs if f + g != 0},
        (F.offset + G.offset) / (2 * balance),
    )
    second = Factor(
        {k: (f - g) * balance / 2 for k, f, g in pairs if f != g},
        (F.offset - G.offset) * balance / 2,
    )
    a = before.form(first.form, first.offset)
    b = before.form(second.form, second.offset)
    error, run_error = (
        up((misread_square(F, run=run) + misread_square(G, run=run)) / 4)
        for run in (False, True)
    )
    e = a.ideal_size * b.e + b.ideal_size * a.e + a.e * b.e + error
    far_a, far_b = a.e + a.r, b.e + b.r
    run = a.ideal_size * far_b + b.ideal_size * far_a + far_a * far_b + run_error
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    algebra = before.algebra
    terms = tuple(algebra.mul(x, y) for x, y in zip(a.terms, b.terms, strict=True))
    value = Value(terms, down(min(ends)), up(max(ends)), up(e), up(max(run - e, ZERO)))
    return Multiplied(plus, minus, first, second, value, error, run_error)


def normalised(
    block: BlockWeights,
    claim: Normalise,
    made: Mapping[tuple[int, int], Made],
    found: Multiplied,
    before: State,
) -> Multiplied:
    """A product c_i * root, with the error of u_i = c_i / sqrt(v), v = mean c^2 + delta.

    Let c^ be the c of a run, off by at most e_c; the root reads v(c^) + eta, s = eta/delta.
    Then

        |u_i(c^) - u_i(c)| <= .5444 (1 + sqrt m) delta^(-1/2) e_c,
        |c^_i| |(v + eta)^(-1/2) - v^(-1/2)| <= (sqrt m / 2) s (1 - s)^(-3/2),

    since |c_i| <= sqrt(m v): the row sums of the Jacobian of u are at most
    v^(-1/2) + sqrt(m) (v - delta) v^(-3/2), largest at v = 3 sqrt(m) delta / (1 + sqrt m).
    The root's own error counts |c_i| times, the product's once. All is about one token and
    one time: squares and products read the same registers, with nothing written between.

    Raises:
        Undecided: If squares, root and product do not belong together.
    """
    squares = [_kept(block, made, place, SQUARE) for place in claim.squares]
    root = _kept(block, made, claim.root, ROOT)
    m, delta = len(squares), claim.delta
    expected = {register: Fraction(1, m) for _, register in claim.squares}
    if len(expected) != m or root.form != expected or root.offset != delta:
        raise block.undecided("the root does not read delta and the mean of the squares")
    for (_, register), square in zip(claim.squares, squares, strict=True):
        if root.before.held[register] is not square.held:
            raise block.undecided("a square was overwritten before its root was taken")
    if before.held[claim.root[1]] is not root.held:
        raise block.undecided("a root was overwritten before its product")
    factors = [found.first, found.second]
    root_itself = Factor({claim.root[1]: Fraction(1)}, ZERO)
    sides = [k for k in (0, 1) if factors[k] == root_itself]
    if not sides:
        raise block.undecided("a normalised value is not a product with the root")
    c = factors[1 - sides[0]]
    if not any(square.form == c.form and square.offset == c.offset for square in squares):
        raise block.undecided("a normalised value has a factor that was not squared")
    for square in squares:
        if any(before.held[k] is not square.before.held[k] for k in square.form):
            raise block.undecided("what was squared was overwritten before its product")
    part = before.form(c.form, c.offset)
    parts = [before.form(square.form, square.offset) for square in squares]
    wide = power_up(Fraction(m), HALF)
    slope = Fraction(5444, 10000) * (1 + wide) * power_up(1 / delta, HALF)
    errors: list[Fraction] = []
    for run in (False, True):
        moved = max(one.e + (one.r if run else 0) for one in parts)
        eta = sum((misread_square(square, run=run) for square in squares), ZERO) / m
        eta += root.misread + (root.rounding if run else 0)
        share = eta / delta
        if not share <= Fraction(1, 100):
            return found
        taken = root.error + (root.lost if run else 0)
        near = Fraction(51, 100) * wide * share
        own = found.run_error if run else found.error
        errors.append(slope * moved + near + part.size * taken + own)
    e, total = errors
    value = found.value
    bound = replace(
        value,
        low=max(value.low, -up(wide)),
        high=min(value.high, up(wide)),
        e=min(value.e, up(e)),
        r=up(max(total - min(value.e, up(e)), ZERO)),
    )
    return replace(found, value=bound)


def _kept(
    block: BlockWeights,
    made: Mapping[tuple[int, int], Made],
    place: tuple[int, int],
    power: Fraction,
) -> Made:
    found = made.get(place)
    if found is None or found.power != power:
        raise block.undecided(f"register {place[1]} of block {place[0]} is not F^({power})")
    return found
