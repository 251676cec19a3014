"""Trees of bounds for people: on paper all terms, on a screen the tiny ones in one line.

Nothing here is part of a proof, or of a file: a certificate keeps its whole tree.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from everyformer.certify.bound import Bound
from everyformer.notebook import html_table
from everyformer.numerics.rationals import format_up

TINY = Fraction(1, 10**6)
"""A term is tiny if it is at most this share of the whole bound."""

INDENT = "\N{MIDDLE DOT} "
"""Before a part, in a table."""


@dataclass(frozen=True)
class Listing:
    """What is shown of a bound in real arithmetic and of one of float64 runs.

    Attributes:
        shown: The bounds with their depths in the tree, from above to below.
        folded: Tiny terms, which are not shown one by one.
    """

    shown: tuple[tuple[int, Bound], ...]
    folded: tuple[Bound, ...]

    @property
    def folded_line(self) -> str | None:
        """What the folded terms are together less than, and what they are."""
        if not self.folded:
            return None
        # Rounded up one by one: the sum of the exact numbers may be very long.
        sizes = (Fraction(term.format_value()) for term in self.folded)
        total = sum(sizes, start=Fraction(0))
        size = "= 0" if total == 0 else f"< {power_of_ten_above(total)}"
        names = dict.fromkeys(term.reason.partition(":")[0] for term in self.folded)
        return f"numerical effects {size}: {'; '.join(names)}"

    def lines(self) -> list[str]:
        """A line for each bound, parts indented, and one for what is folded."""
        found: list[str] = []
        for depth, bound in self.shown:
            source = f" [{bound.source}]" if bound.source else ""
            found.append(f"{'  ' * depth}<= {bound.format_value()}  {bound.reason}{source}")
        return found if self.folded_line is None else [*found, self.folded_line]

    def html(self, caption: str) -> str:
        """The same as a table."""
        rows = [
            [bound.format_value(), f"{INDENT * depth}{bound.reason}", bound.source]
            for depth, bound in self.shown
        ]
        if self.folded_line is not None:
            rows.append(["", self.folded_line, ""])
        return html_table(caption, rows, ("at most", "what", "source"))


def listing(
    bound: Bound | None, float64_bound: Bound | None, *, verbose: bool = False
) -> Listing:
    """Both trees. The parts of the second are those of the first, but for the last one.

    Only the later terms of a sum are folded, and only those without terms of their own: the
    first one is what the construction is about.

    Args:
        bound: In real arithmetic.
        float64_bound: Of float64 runs.
        verbose: Fold nothing.
    """
    shown: list[tuple[int, Bound]] = []
    folded: list[Bound] = []
    least = Fraction(-1)
    if not verbose:
        whole = max((one.value for one in (bound, float64_bound) if one), default=least)
        least = whole * TINY
    if bound is not None:
        shown += _walk(bound, 0, least, folded)
    if float64_bound is not None:
        shown.append((0, float64_bound))
        for term in float64_bound.terms[-1:]:
            if float64_bound.rule == "sum" and _is_tiny(term, least):
                folded.append(term)
            else:
                shown += _walk(term, 1, least, folded)
    return Listing(tuple(shown), tuple(folded))


def _walk(
    bound: Bound, depth: int, least: Fraction, folded: list[Bound]
) -> Iterator[tuple[int, Bound]]:
    yield depth, bound
    for number, term in enumerate(bound.terms):
        if bound.rule == "sum" and number > 0 and _is_tiny(term, least):
            folded.append(term)
        else:
            yield from _walk(term, depth + 1, least, folded)


def _is_tiny(term: Bound, least: Fraction) -> bool:
    return term.value <= least and not term.terms


def power_of_ten_above(value: Fraction) -> str:
    """The least power of ten that is larger than a number > 0.

    Example:
        >>> power_of_ten_above(Fraction(5, 10**12)), power_of_ten_above(Fraction(1, 10))
        ('1e-11', '1e+00')
    """
    exponent = int(format_up(value, 1).partition("e")[2])
    while Fraction(10) ** exponent <= value:
        exponent += 1
    return f"1e{exponent:+03d}"
