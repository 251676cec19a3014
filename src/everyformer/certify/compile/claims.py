"""What a compiled network says of itself: one claim for each head and each unit.

Claims are hints from a file that nobody vouches for. They choose which identity is tried;
each is checked against the weights (docs/constructions/compile.md). Here they are read:
types, ranges and sizes, so that whatever comes later has nothing to fear from them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast

from everyformer.certify.undecided import Undecided
from everyformer.numerics.rationals import parse_rational

STAGE = "program"
"""The stage that a refusal of a claim names."""

MAX_BITS = 4096
"""Of a rational in a claim."""

MOST_LINES = 2**32
"""Of f."""

FUNCTIONS = frozenset({"pow", "exp", "log", "sin", "cos", "tanh", "logistic"})

TermKind = Literal["copy", "abs", "relu"]


@dataclass(frozen=True)
class Mixture:
    """A head whose weights do not depend on x: row j of A mixes the tokens.

    Attributes:
        rows: For each token the weights that are not 0; each row sums to at most 1.
    """

    rows: tuple[Mapping[int, Fraction], ...]


@dataclass(frozen=True)
class Column:
    """What one column of a unary head computes: fn(inner[0] t + inner[1]).

    Attributes:
        name: fn.
        power: s of t^s for "pow"; else None.
        inner: How t, which the query reads, becomes the argument.
    """

    name: str
    power: Fraction | None
    inner: tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Unary:
    """A head over prefix tokens: functions of one number.

    Attributes:
        columns: For each component its function; None where it is not used.
    """

    columns: tuple[Column | None, ...]


@dataclass(frozen=True)
class Attend:
    """A head whose weights are softmax(q . k) over the tokens of the sequence.

    Attributes:
        everyone: Whether f's own sum has the tokens that are silent, with weights below
            e^-760; else it leaves them out.
        faint: The number that f's own sum has for the score of each token that is silent;
            None if it has the head's own score, or leaves them out.
    """

    everyone: bool = False
    faint: Fraction | None = None


@dataclass(frozen=True)
class ExponentialSum:
    """A head that adds up e^(q . k) v over the tokens of the sequence."""


HeadClaim = Mixture | Unary | Attend | ExponentialSum


@dataclass(frozen=True)
class Term:
    """Units that add c v, c |v| or c max(v, 0) to a register.

    Attributes:
        kind: Which of them.
        units: One unit, or two.
        gate: A constant register that is 0 where the term counts; None for everywhere.
    """

    kind: TermKind
    units: tuple[int, ...]
    gate: int | None


@dataclass(frozen=True)
class Sum:
    """Terms that an empty register receives."""

    register: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Extreme:
    """A register that becomes the larger, or the smaller, of itself and a form."""

    register: int
    unit: int
    larger: bool


@dataclass(frozen=True)
class Exchange:
    """A register that becomes the smaller where one gate is open, the larger at the other.

    Attributes:
        register: The register.
        units: The unit that lowers it, the unit that raises it.
        gates: Constant registers, 0 where that unit counts.
    """

    register: int
    units: tuple[int, int]
    gates: tuple[int, int]


@dataclass(frozen=True)
class Clear:
    """A register that becomes 0."""

    register: int
    units: tuple[int, int]


UnitClaim = Sum | Extreme | Exchange | Clear


@dataclass(frozen=True)
class Product:
    """Two squares that are read as one product.

    Attributes:
        registers: Hold (l a + b/l)^2 and (l a - b/l)^2.
        balance: l.
    """

    registers: tuple[int, int]
    balance: Fraction


@dataclass(frozen=True)
class Normalise:
    """c_i / sqrt(mean of c^2 + delta), from squares, a root and products.

    Attributes:
        squares: Registers of c_i^2, with the block that wrote each.
        root: Register of the inverse root, with its block.
        products: The block and the two registers of each c_i * root.
        delta: A number > 0.
    """

    squares: tuple[tuple[int, int], ...]
    root: tuple[int, int]
    products: tuple[tuple[int, int, int], ...]
    delta: Fraction


@dataclass(frozen=True)
class Sort:
    """Exchanges of one register that are a sorting network, and lines of f that are sorted.

    Attributes:
        register: The register that holds the wires, one for each token.
        blocks: The block of the first exchange and that of the last.
        lines: The lines of f where its own sort of the same numbers ends, in order.
    """

    register: int
    blocks: tuple[int, int]
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """The claims of one block: one for each head, any number for the units."""

    heads: tuple[HeadClaim, ...]
    units: tuple[UnitClaim, ...]


@dataclass(frozen=True)
class Claims:
    """All that a compiled network says of itself.

    Attributes:
        blocks: A block for each stage.
        products: Products, by the block that wrote their squares and by first register.
        normalised: Groups of normalised values, by the block and registers of a product.
        coefficients: For the name of an array, "3.W_V" or "W_out", the rationals that
            entries stand for.
        sorts: Registers that are sorted, none of them twice at a time.
    """

    blocks: tuple[Block, ...]
    products: Mapping[int, Mapping[int, Product]]
    normalised: Mapping[tuple[int, int, int], Normalise]
    coefficients: Mapping[str, Mapping[tuple[int, ...], Fraction]]
    sorts: tuple[Sort, ...] = ()


def refuse(why: str) -> Undecided:
    """A claim that cannot be what the weights do."""
    return Undecided(STAGE, why)


def read_claims(values: Any, seq_len: int, width: int) -> Claims:
    """Claims from parsed JSON.

    Raises:
        Undecided: If it is anything else.
    """
    try:
        blocks = tuple(_block(one, seq_len, width) for one in _list(values["blocks"]))
        macros = [_macro(one, len(blocks), width) for one in _list(values["macros"])]
        products, normalised = _by_place(macros)
        coefficients = dict(_coefficients(values["coefficients"]))
        said = _list(values["sorting"]) if "sorting" in values else []
        sorts = tuple(_sort(one, len(blocks), seq_len, width) for one in said)
    except Undecided:
        raise
    except (
        AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError,
        ValueError, ZeroDivisionError,
    ) as error:  # fmt: skip
        said = f"{type(error).__name__}: {str(error)[:80]}"
        msg = f"the program beside the weights cannot be read ({said})"
        raise refuse(msg) from error
    return Claims(blocks, products, normalised, coefficients, sorts)


@dataclass(frozen=True)
class Claimed:
    """How much of what parsed JSON claims, whatever else it is.

    Attributes:
        columns: Functions of one number.
        sorts: Sorts.
        moves: For each block the heads that only move tokens, or take their mean.
    """

    columns: int
    sorts: int
    moves: tuple[int, ...]

    @classmethod
    def of(cls, values: Any) -> "Claimed":
        """Count what is claimed."""
        heads = [_under("heads", block) for block in _under("blocks", values)]
        rows = [_under("columns", head) for row in heads for head in row]
        columns = sum(column is not None for row in rows for column in row)
        moves = tuple(sum(_is_move(head) for head in row) for row in heads)
        return cls(columns, len(_under("sorting", values)), moves)


def _is_move(head: Any) -> bool:
    return isinstance(head, dict) and head.get("step") in ("gather", "mean")


def _under(key: str, one: Any) -> list[Any]:
    found = one.get(key) if isinstance(one, dict) else None
    return found if isinstance(found, list) else []


def _by_place(
    macros: list[tuple[int, Product] | Normalise],
) -> tuple[dict[int, dict[int, Product]], dict[tuple[int, int, int], Normalise]]:
    """Products by block and first register, groups by the products in them: one for each.

    Raises:
        Undecided: If there are two for the same place.
    """
    products: dict[int, dict[int, Product]] = {}
    normalised: dict[tuple[int, int, int], Normalise] = {}
    for found in macros:
        if isinstance(found, Normalise):
            if not normalised.keys().isdisjoint(found.products):
                raise refuse("a product belongs to two groups of normalised values")
            normalised.update(dict.fromkeys(found.products, found))
            continue
        block, product = found
        own = products.setdefault(block, {})
        if product.registers[0] in own:
            raise refuse(f"register {product.registers[0]} has two products")
        own[product.registers[0]] = product
    return products, normalised


def _block(values: Any, n: int, width: int) -> Block:
    heads = tuple(_head(one, n) for one in _list(values["heads"]))
    units = tuple(_units(one, width) for one in _list(values["units"]))
    return Block(heads, units)


def _head(values: Any, n: int) -> HeadClaim:
    kind = values["step"]
    if kind == "mean":
        return Mixture((dict.fromkeys(range(n), Fraction(1, n)),) * n)
    if kind == "gather":
        chosen = _indices(values["tau"], n, count=n)
        return Mixture(tuple({k: Fraction(1)} for k in chosen))
    if kind == "mix":
        rows = [[_rational(q) for q in _list(row)] for row in _list(values["matrix"])]
        if len(rows) != n or any(len(row) != n for row in rows):
            raise refuse(f"a mixture is not {n} rows of {n} numbers")
        if any(min(row) < 0 or sum(row) > 1 for row in rows):
            raise refuse("a mixture has a negative weight, or a row with a sum above 1")
        return Mixture(tuple({k: q for k, q in enumerate(row) if q} for row in rows))
    if kind == "attend":
        faint = _rational(values["faint"]) if "faint" in values else None
        return Attend(everyone="everyone" in values, faint=faint)
    if kind == "exponential sum":
        return ExponentialSum()
    if kind == "unary":
        return Unary(tuple(_column(one) for one in _list(values["columns"])))
    raise refuse(f"{str(kind)[:40]!r} is not a step of a head")


def _column(values: Any) -> Column | None:
    if values is None:
        return None
    name = values["fn"]
    if name not in FUNCTIONS:
        raise refuse(f"{str(name)[:40]!r} is not a function of a unary head")
    power = _rational(values["power"]) if name == "pow" else None
    if power is not None and (power.denominator > 2 or abs(power) > 64):
        raise refuse(f"the power {power} is not followed")
    first, second = (_rational(q) for q in _list(values["inner"]))
    return Column(name, power, (first, second))


def _units(values: Any, width: int) -> UnitClaim:
    kind, register = values["step"], _index(values["register"], width)
    if kind == "sum":
        terms = tuple(_term(one, width) for one in _list(values["terms"]))
        return Sum(register, terms)
    units = _indices(values["units"])
    if kind in {"max", "min"} and len(units) == 1:
        return Extreme(register, units[0], larger=kind == "max")
    if kind == "clear" and len(units) == 2:
        return Clear(register, (units[0], units[1]))
    if kind == "exchange" and len(units) == 2:
        low, up = _indices(values["gates"], width, count=2)
        return Exchange(register, (units[0], units[1]), (low, up))
    raise refuse(f"{str(kind)[:40]!r} with {len(units)} units is not a step of units")


def _term(values: Any, width: int) -> Term:
    kind, units = values["as"], _indices(values["units"])
    expected = {"copy": 2, "abs": 2, "relu": 1}.get(kind)
    if len(units) != expected:
        raise refuse(f"{str(kind)[:40]!r} with {len(units)} units is not a term")
    gate = values["gate"]
    return Term(
        cast("TermKind", kind), units, None if gate is None else _index(gate, width)
    )


def _macro(values: Any, blocks: int, width: int) -> tuple[int, Product] | Normalise:
    kind = values["step"]
    if kind == "product":
        plus, minus = _indices(values["registers"], width, count=2)
        balance = _rational(values["balance"])
        if balance <= 0:
            raise refuse(f"the balance {balance} of a product is not positive")
        return _index(values["block"], blocks), Product((plus, minus), balance)
    if kind != "normalise":
        raise refuse(f"{str(kind)[:40]!r} is not a macro")

    def place(pair: Any) -> tuple[int, int]:
        block, register = _list(pair)
        return _index(block, blocks), _index(register, width)

    squares = tuple(place(one) for one in _list(values["squares"]))
    products = tuple(
        (_index(block, blocks), _index(plus, width), _index(minus, width))
        for block, plus, minus in (_list(one) for one in _list(values["products"]))
    )
    delta = _rational(values["delta"])
    if not squares or len(products) > len(squares) or delta <= 0:
        raise refuse("a group of normalised values has no squares, or delta <= 0")
    return Normalise(squares, place(values["root"]), products, delta)


def _sort(values: Any, blocks: int, n: int, width: int) -> Sort:
    first, last = _indices(values["blocks"], blocks, count=2)
    lines = _indices(values["lines"], MOST_LINES, count=n)
    if first > last:
        raise refuse(f"a sort ends in block {last}, before it begins in {first}")
    return Sort(_index(values["register"], width), (first, last), lines)


def _coefficients(values: Any) -> Iterator[tuple[str, dict[tuple[int, ...], Fraction]]]:
    for name, entries in values.items():
        found: dict[tuple[int, ...], Fraction] = {}
        for entry in _list(entries):
            *place, text = _list(entry)
            found[_indices(place)] = _rational(text)
        yield str(name), found


def _list(values: Any) -> list[Any]:
    if type(values) is not list:
        raise refuse(f"{str(values)[:40]!r} stands where a list belongs")
    return values


def _index(value: Any, below: int = 2**20) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise refuse(f"{str(value)[:40]!r} is not an index below {below}")
    return value


def _indices(values: Any, below: int = 2**20, count: int | None = None) -> tuple[int, ...]:
    found = tuple(_index(value, below) for value in _list(values))
    if count is not None and len(found) != count:
        raise refuse(f"{len(found)} indices stand where {count} belong")
    return found


def _rational(text: Any) -> Fraction:
    value = parse_rational(text)
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise refuse(f"a rational of more than {MAX_BITS} bits")
    return value
