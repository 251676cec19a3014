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
from everyformer.errors import InputError

Row = dict[str, Any]


class Kept:
    """The rows of one run; in memory alone if there is no path.

    Attributes:
        starts: The environment of each start, the last one this run's.
    """

    def __init__(self, path: Path | None = None, *, resume: bool = False) -> None:
        """Read what an earlier run left, or begin anew.

        Raises:
            InputError: If rows were made on another machine, or with other libraries.
        """
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
        for earlier in self.starts:
            _refuse_other_places(str(path), earlier, start)
        self.starts.append(start)
        self._append({"environment": start})

    def _read(self, path: Path) -> None:
        text = path.read_text(errors="replace")
        for line in text.splitlines():
            match _found(line):
                case {"environment": dict(start)}:
                    self.starts.append(start)
                case {"about": about, "row": row}:
                    self._rows.append((about, row))
                case _:
                    continue
        if text and not text.endswith("\n"):
            with path.open("a") as file:
                file.write("\n")

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

    def stop(self) -> None:
        """After a run that broke off: remove the file if there is nothing to go on with."""
        if not self._rows:
            self.finish()

    def finish(self) -> None:
        """Remove the file: the whole result stands elsewhere."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _found(line: str) -> Any:
    """What a line holds; None for the one in which a run was stopped."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _refuse_other_places(path: str, earlier: Row, now: Row) -> None:
    there, here = _place(earlier), _place(now)
    other = [key for key in there if there[key] != here.get(key, there[key])]
    if other:
        were, are = (", ".join(f"{x[key]}" for key in other) for x in (there, here))
        msg = (
            f"{path} keeps rows of {were}, and here is {are}: one table would show both "
            "as one. Go on where it was begun, or begin anew, without --resume."
        )
        raise InputError(msg)


def _place(start: Row) -> dict[str, str]:
    """The processor that is timed, and the versions of libraries."""
    gpu = start.get("gpu")
    own: dict[str, Any] = start.get("versions") or {}
    libraries = {
        name: f"{name} {version or 'not installed'}"
        for name, version in own.items()
        if name != "everyformer"  # other code is checked again
    }
    return {"processor": str(gpu or start.get("cpu"))} | libraries
