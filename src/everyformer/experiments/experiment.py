"""What an experiment is: cells, expected numbers, a table and a picture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from everyformer.errors import TrainingError
from everyformer.experiments.cell import Cell, Labels, Size
from everyformer.experiments.claims import Claims, load_claims
from everyformer.experiments.expected import Expected, load_expected, verdict

Completed = Callable[
    [Sequence[dict[str, Any]], Mapping[str, Mapping[str, np.ndarray]], Size, Path | None],
    bool,
]
Synthetic = Callable[[Size, Sequence[int], Mapping[str, Any]], list[Cell]]


@runtime_checkable
class Cells(Protocol):
    """Makes the cells of an experiment."""

    def __call__(
        self,
        size: Size,
        seeds: Sequence[int],
        changes: Mapping[str, Any],
        data: Path | None = None,
    ) -> list[Cell]:
        """All cells of a size, the most important first.

        Args:
            size: Of models and runs.
            seeds: One run of every cell for each.
            changes: Settings that differ from the experiment's.
            data: Folder of packs.
        """
        ...


@dataclass(frozen=True)
class Experiment:
    """Everything behind a name of `everyformer reproduce`.

    Attributes:
        name: On the command line.
        about: In one line.
        cells: All cells of a size, for these seeds, the most important first.
        expected: The numbers of the paper.
        picture: Draws the results that are there.
        columns: Numbers of a result's `more` that the table shows too, with headings; a
            point leads into a part, as in "test.nats.mean_sampled".
        claims: What is judged over seeds; without it every run has a verdict of its own.
        conditions: How a result was made, where a number means little without.
        order: Labels of all cells of a size, where cells cannot be made without data.
        summary: What the results say together, as text below their table.
        least_seconds: A cell that would have less time than this is not begun.
        completed: Adds numbers that the machine of a run could not compute to results
            (results, scores, size, folder of packs); whether any were added.
    """

    name: str
    about: str
    cells: Cells
    expected: Expected
    picture: Callable[[Sequence[Mapping[str, Any]], Path], None]
    columns: Mapping[str, str]
    claims: Claims | None = None
    conditions: Callable[[Mapping[str, Any]], str] | None = None
    order: Callable[[Size, Sequence[int]], Sequence[Labels]] | None = None
    summary: Callable[[Sequence[Mapping[str, Any]], str], str] | None = None
    least_seconds: float = 5.0
    completed: Completed | None = None

    def labels(self, size: Size, seeds: Sequence[int]) -> list[dict[str, str | int]]:
        """The labels of all cells of a size, in their order; reads no data."""
        if self.order is not None:
            return [dict(labels) for labels in self.order(size, seeds)]
        return [dict(cell.labels) for cell in self.cells(size, seeds, {})]

    def in_order(
        self, results: Sequence[Mapping[str, Any]], size: Size
    ) -> list[Mapping[str, Any]]:
        """The results in the order of the cells, seed by seed, whenever each was run."""
        seeds = sorted({result["labels"].get("seed", 0) for result in results})
        places = self.labels(size, seeds)
        others = [result["labels"] for result in results if result["labels"] not in places]
        return sorted(results, key=lambda r: [*places, *others].index(r["labels"]))

    def table(
        self, results: Sequence[Mapping[str, Any]], size: str
    ) -> tuple[list[str], list[list[str]]]:
        """Headings and rows: labels, more numbers, paper, ours, verdict."""
        labels = list(dict.fromkeys(name for r in results for name in r["labels"]))
        rows: list[list[str]] = []
        for result in results:
            entry = self.expected.of(result["labels"])
            printed = None if entry is None else entry["paper"]
            row = [str(result["labels"].get(name, "")) for name in labels]
            row += [number(entry_of(result["more"], name)) for name in self.columns]
            row += [number(printed), with_error(result)]
            rows.append([*row, verdict(entry, result, results, size)])
        return [*labels, *self.columns.values(), "paper", "ours", "verdict"], rows

    def notes(self, results: Sequence[Mapping[str, Any]]) -> list[str]:
        """What to know of the paper's numbers that the table shows, each once."""
        found = [self.expected.of(result["labels"]) for result in results]
        return list(dict.fromkeys(e["note"] for e in found if e and e.get("note")))


def stored(package: str) -> dict[str, Any]:
    """Name, `expected.json` and, if there is one, `claims.json` of an experiment.

    Raises:
        FileFormatError: If a file breaks its rules.

    Example:
        >>> stored("everyformer.experiments.sparse_lm")["name"]
        'sparse-lm'
    """
    judged = (files(package) / "claims.json").is_file()
    return {
        "name": package.rpartition(".")[2].replace("_", "-"),
        "expected": load_expected(package),
        "claims": load_claims(package) if judged else None,
    }


def synthetic(
    name: str, cells: Synthetic, *, reduced: bool = False, trained: bool = True
) -> Cells:
    """Cells of an experiment that draws its own examples.

    Args:
        name: Of the experiment.
        cells: Makes them.
        reduced: Whether there is a reduced size.
        trained: Whether anything is trained, so that settings can be changed.

    Raises:
        TrainingError: From what is returned, if it is given a folder of data, a size
            that does not exist, or changes without a training.
    """

    def made(
        size: Size,
        seeds: Sequence[int],
        changes: Mapping[str, Any],
        data: Path | None = None,
    ) -> list[Cell]:
        if data is not None:
            msg = f"{name} draws its own examples and reads no {data}. Leave out --data."
            raise TrainingError(msg)
        if size == "reduced" and not reduced:
            msg = f"{name} has no reduced size. Choose smoke, small or paper."
            raise TrainingError(msg)
        if changes and not trained:
            names = ", ".join(changes)
            msg = f"{name} trains nothing, so {names} cannot be set. Leave it out."
            raise TrainingError(msg)
        return cells(size, seeds, changes)

    return made


def entry_of(more: Mapping[str, Any], name: str) -> Any:
    """What lies at the end of a path of names, or None.

    Example:
        >>> entry_of({"test": {"nats": 3.3}}, "test.nats"), entry_of({}, "test.nats")
        (3.3, None)
    """
    found: Any = more
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def number(value: Any) -> str:
    """A number for a table: short, and nothing for None.

    Example:
        >>> number(0.99951), number(63.595), number(2000), number(1.5e-7), number("union")
        ('0.9995', '63.6', '2,000', '1.5e-07', 'union')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        size = abs(value)
        if size < 10:
            return f"{value:.4f}" if size >= 1e-3 or size == 0.0 else f"{value:.3g}"
        return f"{value:.1f}" if size < 1e4 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a document.

    Example:
        >>> print(markdown(["a", "b"], [["1", "long"]]))
        | a | b    |
        |---|------|
        | 1 | long |
    """
    lines = [headings, *rows]
    width = [max(len(line[place]) for line in lines) for place in range(len(headings))]
    told = [
        f"| {' | '.join(cell.ljust(w) for cell, w in zip(line, width, strict=True))} |"
        for line in lines
    ]
    told.insert(1, f"|{'|'.join('-' * (w + 2) for w in width)}|")
    return "\n".join(told)


def with_error(result: Mapping[str, Any]) -> str:
    """A result and its standard error."""
    error = result["standard_error_sampled"]
    return number(result["value_sampled"]) + ("" if not error else f" ± {error:.1g}")
