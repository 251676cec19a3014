"""Patterns drawn as squares of characters, for the terminal."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from everyformer.errors import PatternError
from everyformer.patterns.part import Part

HALVES = " ▀▄█"
"""Upper half heard, lower half heard, both: two rows of tokens in a row of characters."""

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of the dots of a braille character, four rows of two."""

BRAILLE = 0x2800
SHADES = " ░▒▓█"
GAP = "   "
LEAST_SIDE = 4


def density(part: Part, rows: int, columns: int) -> Float[np.ndarray, "rows columns"]:
    """The share of connections kept in each cell of a coarser grid."""
    entries = part.rows()
    cells = (entries.listeners() * rows // part.n) * columns
    cells += entries.indices.astype(np.int64) * columns // part.n
    kept = np.bincount(cells, minlength=rows * columns).reshape(rows, columns)
    tokens = np.arange(part.n)
    heights = np.bincount(tokens * rows // part.n, minlength=rows)
    widths = np.bincount(tokens * columns // part.n, minlength=columns)
    return kept / (heights[:, None] * widths)


def text(parts: Sequence[Part], columns: int) -> str:
    """The parts as squares of characters, side by side: row k shows A_k.

    Raises:
        PatternError: If they do not fit in the width.
    """
    side = (columns - len(GAP) * (len(parts) - 1)) // len(parts)
    if side < LEAST_SIDE:
        least = (LEAST_SIDE + len(GAP)) * len(parts) - len(GAP)
        msg = (
            f"{len(parts)} parts in {columns} columns leave {side} for each, and "
            f"{LEAST_SIDE} are needed. Draw with columns={least} or more."
        )
        raise PatternError(msg)
    squares = [_square(part, side) for part in parts]
    names = [f"A^{place + 1}" for place in range(len(parts))]
    titled = [
        [name.ljust(len(square[0])), *square]
        for name, square in zip(names, squares, strict=True)
    ]
    lines = (GAP.join(line).rstrip() for line in zip(*titled, strict=True))
    shrunk = parts[0].n > 2 * side
    note = f"{SHADES[1]} to {SHADES[-1]}: a few to all" if shrunk else "marked: heard"
    return "\n".join([*lines, f"row k: the tokens that token k attends to ({note})"])


def _square(part: Part, side: int) -> list[str]:
    if part.n <= side:
        seen = part.mask()
        if part.n % 2:
            seen = np.vstack([seen, np.zeros((1, part.n), dtype=bool)])
        codes = seen[0::2] + 2 * seen[1::2].astype(np.int64)
        return ["".join(HALVES[code] for code in row) for row in codes]
    if part.n <= 2 * side:
        padded = np.zeros((-(-part.n // 4) * 4, -(-part.n // 2) * 2), dtype=np.int64)
        padded[: part.n, : part.n] = part.mask()
        codes = sum(
            bit * padded[row::4, column::2]
            for row, bits in enumerate(DOTS)
            for column, bit in enumerate(bits)
        )
        return ["".join(chr(BRAILLE + code) for code in row) for row in np.asarray(codes)]
    shares = density(part, max(side // 2, 1), side)
    steps = len(SHADES) - 1
    codes = np.minimum(np.ceil(np.sqrt(shares) * steps), steps).astype(np.int64)
    return ["".join(SHADES[code] for code in row) for row in codes]
