"""Rows of a long benchmark, on disk as soon as each is known.

One JSON object a line. Every start writes a line with the environment, every row a line
with what it is about and what was found. A run that is stopped keeps its rows, and goes on
from there (`--resume`).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everyformer.bench.results import environment

Row = dict[str, Any]


class Kept:
    """The rows of one run; in memory alone if there is no path.

    Attributes:
        starts: The environment of each start, the last one this run's.
    """

    def __init__(self, path: Path | None = None, *, resume: bool = False) -> None:
        """Read what an earlier run left, or begin anew."""
        self._path = path
        self._rows: list[tuple[Row, Row]] = []
        self.starts: list[Row] = []
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not resume:
                path.unlink(missing_ok=True)
            elif path.is_file():
                self._read(path)
        start = environment()
        self.starts.append(start)
        self._append({"environment": start})

    def _read(self, path: Path) -> None:
        for line in path.read_text().splitlines():
            try:
                found = json.loads(line)
            except ValueError:  # the line in which a run was stopped
                continue
            if "environment" in found:
                self.starts.append(found["environment"])
            else:
                self._rows.append((found["about"], found["row"]))

    def _append(self, line: Row) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def known(self, about: Row) -> Row | None:
        """The row about something, if it was kept."""
        return next((row for told, row in self._rows if told == about), None)

    def row(self, about: Row, make: Callable[[], Row]) -> Row:
        """The row about something: as it was kept, or made now and kept.

        Args:
            about: What names the row; numbers and texts.
            make: Finds the rest of it.
        """
        known = self.known(about)
        if known is not None:
            return known
        row = about | make()
        self._rows.append((about, row))
        self._append({"about": about, "row": row})
        return row

    @property
    def provenance(self) -> Row:
        """Where rows come from: this start, and the earlier ones whose rows are kept."""
        return {"environment": self.starts[-1], "earlier_starts": self.starts[:-1]}

    def finish(self) -> None:
        """Remove the file: the whole result stands elsewhere."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
