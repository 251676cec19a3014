"""A family of patterns A^1, .., A^p, which the blocks of a sparse Transformer cycle."""

from dataclasses import dataclass, field
from typing import Any

from everyformer.errors import PatternError
from everyformer.notebook import html_drawing, html_table, short
from everyformer.patterns import drawing
from everyformer.patterns.kinds import Union
from everyformer.patterns.leading import first_of
from everyformer.patterns.part import Part, check_whole, whole_numbers
from everyformer.patterns.past import past_of


@dataclass(frozen=True)
class Pattern:
    """Patterns A^1, .., A^p; block b uses A^((b - 1) mod p + 1).

    Two are equal if their names and parts are: a window and the same sets listed are not.

    Attributes:
        name: What it is called.
        parts: A^1, .., A^p, all of the same n.
        path: A Hamiltonian path known in closed form, 0-based; None for the identity or
            where none is known. It is a hint: checks verify it as they would a user's.
    """

    name: str
    parts: tuple[Part, ...]
    path: tuple[int, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Check that there are parts and that they fit together.

        Raises:
            PatternError: If not.
        """
        if not self.parts:
            msg = f"The pattern {self.name!r} is empty: at least one part is needed."
            raise PatternError(msg)
        lengths = {part.n for part in self.parts}
        if len(lengths) > 1:
            msg = (
                f"The parts of {self.name!r} are for different n, {sorted(lengths)}: all "
                "blocks of a network see the same tokens. Give one n."
            )
            raise PatternError(msg)

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.parts[0].n

    @property
    def p(self) -> int:
        """Number of patterns that are cycled through."""
        return len(self.parts)

    def part_of(self, block: int) -> Part:
        """The pattern of a block, 0-based."""
        check_whole("part_of", 0, block=block)
        return self.parts[block % self.p]

    @property
    def connections(self) -> tuple[int, ...]:
        """sum_k |A_k^l| for every l."""
        return tuple(part.connections for part in self.parts)

    @property
    def sparsity(self) -> tuple[float, ...]:
        """1 - sum_k |A_k^l| / n^2 for every l."""
        return tuple(part.sparsity for part in self.parts)

    def union(self) -> "Pattern":
        """The pattern A_k = union_l A_k^l, p = 1."""
        if self.p == 1:
            return self
        parts = (Union(self.n, self.parts),)
        return Pattern(f"union of {self.name}", parts, self.path)

    def causal_part(self) -> "Pattern":
        """The pattern A_k^l ∩ {1, .., k}: no token hears a later one.

        Windows stay windows, and strides, segments, columns and global tokens run as fast.
        The relay of a star is its last token: what is left is a window, and that row.

        Raises:
            PatternError: If some token attends to later ones alone.

        Example:
            >>> from everyformer.patterns import strided
            >>> strided(64, 8).causal_part().connections
            (310, 288)
        """
        parts = tuple(past_of(part) for part in self.parts)
        if parts == self.parts:
            return self
        return Pattern(f"{self.name}, causal", parts)

    def first(self, n: int) -> "Pattern":
        """The pattern of the first n tokens: A_k^l ∩ {1, .., n} for k <= n.

        As a function of n it makes this pattern fit all shorter sequences:
        `SparseAttention(64, 4, pattern.first)`.

        Raises:
            PatternError: If there are fewer, or one of them attends to later ones alone.

        Example:
            >>> from everyformer.patterns import strided
            >>> strided(64, 8).first(32) == strided(32, 8)
            True
        """
        parts = tuple(first_of(part, n) for part in self.parts)
        return self if n == self.n else Pattern(self.name, parts)

    def draw(self, columns: int = 80) -> str:
        """The parts as squares of characters, side by side: row k shows A_k.

        Args:
            columns: Width of the drawing in characters; longer sequences are shrunk.
        """
        return drawing.text(self.parts, columns)

    def picture(self) -> Any:
        """The parts as pictures, side by side: a matplotlib figure."""
        from everyformer.patterns.picture import picture  # slow to import

        return picture(self.name, self.parts)

    def __str__(self) -> str:
        """Name, sizes and connections."""
        counts = " / ".join(f"{count:,}" for count in self.connections)
        shares = " / ".join(f"{100 * share:.2f} %" for share in self.sparsity)
        sizes = f"{self.name}: n = {self.n}, p = {self.p}"
        return f"{sizes}, connections {counts}, sparsity {shares}"

    def __repr__(self) -> str:
        """One line; `to_json` has all of it."""
        kinds = ", ".join(dict.fromkeys(part.kind for part in self.parts))
        return short(
            f"Pattern({short(self.name)}: n = {self.n}, p = {self.p}, {kinds})", 120
        )

    def _repr_html_(self) -> str:
        """A line for each part, and a drawing, for notebooks."""
        rows = [
            [str(k), part.kind, f"{part.connections:,}", f"{100 * part.sparsity:.2f} %"]
            for k, part in enumerate(self.parts, start=1)
        ]
        caption = f"{short(self.name)}: {self.n} tokens, {self.p} in turn"
        headings = ("part", "kind", "connections", "sparsity")
        return html_table(caption, rows, headings) + html_drawing(self.draw())

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        path = None if self.path is None else list(self.path)
        return {
            "name": self.name,
            "parts": [part.to_json() for part in self.parts],
            "path": path,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Pattern":
        """The pattern that `to_json` wrote.

        Raises:
            PatternError: If it does not describe one.
        """
        names = sorted(data) if isinstance(data, dict) else str(data)[:80]
        if names != ["name", "parts", "path"]:
            msg = f"A pattern has a name, parts and a path, but this has {names}."
            raise PatternError(msg)
        if not isinstance(data["name"], str):
            raise PatternError(f"The name of a pattern is a text, not {data['name']!r}.")
        path = data["path"]
        if path is not None:
            path = whole_numbers("The path", path)
        return Pattern(data["name"], Part.all_from_json(data["parts"]), path)
