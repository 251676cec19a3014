"""Pages of stored results: benchmarks (JSON) and experiments (tables of Markdown)."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everyformer.bench.themes import THEMES, load

SHOWN = 8
"""Rows of a benchmark that are shown before the rest is folded."""

HEAD = """# Benchmarks

Made from the files in `benchmarks/results`, which `everyformer bench THEME` writes:
machine, versions, commit and date are theirs. A benchmark checks that results are right
before it takes a time. Names that end in `_sampled` are measurements at random points;
times are in seconds (`_s`), milliseconds (`_ms`) or nanoseconds (`_ns`).

"""

RESULTS_HEAD = """# Result tables

Every table that `everyformer reproduce` has written to `experiments/results`, as it stands
there: what the paper prints, what came out here, under which conditions. What it means is
said in [experiments](experiments.md).

"""


def benchmarks_page(folder: Path) -> str:
    """All themes in their order; those without a theme at the end."""
    themes: dict[str, list[Path]] = {name: [] for name in THEMES}
    for path in sorted(folder.glob("*.json")):
        themes.setdefault(path.stem.split("_")[0], []).append(path)
    parts = [HEAD]
    for theme, paths in themes.items():
        if paths:
            parts.append(f"## {theme}\n\n{_about(theme)}")
        parts += [_benchmark(path) for path in paths]
    return "\n".join(parts)


def _about(theme: str) -> str:
    """The first line of the benchmark's docstring, and how to run it."""
    if theme not in THEMES:
        return ""
    line = (load(theme).__doc__ or "").partition("\n")[0]
    return f"{line} `everyformer bench {theme}`\n"


def _benchmark(path: Path) -> str:
    """One file: where and when, its settings, some rows, and its picture."""
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    around: dict[str, Any] = stored.pop("environment")
    stored.pop("theme")
    machine = around.get("gpu") or around.get("cpu") or "CPU"
    cores = f", {around['cores']} cores" if around.get("cores") else ""
    link = f"../benchmarks/results/{path.name}"
    parts = [
        f"### {path.stem.replace('_', ', ')}\n",
        f"{machine}{cores}, {around['date'][:10]}, Python {around['python']}, "
        f"commit `{str(around.get('commit', 'not said'))[:10]}`. "
        f"[All of it]({link}).\n",
    ]
    settings = {name: one for name, one in stored.items() if _is_plain(one)}
    if settings:
        told = (f"{name} = {_cell(one)}" for name, one in settings.items())
        parts.append(f"Settings: {', '.join(told)}.\n")
    picture = path.with_suffix(".png")
    if picture.is_file():
        parts.append(f"![{path.stem}](../benchmarks/results/{picture.name})\n")
    rows = stored.get("rows")
    parts.append(_rows(rows) if rows else _sections(stored))
    return "\n".join(parts)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str) and len(str(value)) < 200


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Up to eight rows, evenly taken; all of them folded below."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns = [
        name for name in columns if not any(isinstance(row.get(name), dict) for row in rows)
    ]

    def table(chosen: Sequence[Mapping[str, Any]]) -> str:
        return _table(columns, [[row.get(name) for name in columns] for row in chosen])

    if len(rows) <= SHOWN:
        return table(rows)
    some = [rows[k * len(rows) // SHOWN] for k in range(SHOWN)]
    folded = table(rows).replace("\n", "\n    ").rstrip()
    return f'{table(some)}\n??? note "All {len(rows)} rows"\n\n    {folded}\n'


def _sections(stored: Mapping[str, Any]) -> str:
    """Numbers under headings, as one table."""
    lines: list[list[Any]] = []
    for section, values in stored.items():
        if isinstance(values, Mapping):
            lines += [[section, *line] for line in _flat(values)]
    return _table(["part", "what", "value"], lines)


def _flat(values: Mapping[str, Any], before: str = "") -> list[list[Any]]:
    found: list[list[Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{before}{name}: ")
        elif not isinstance(value, list):
            found.append([f"{before}{name}", value])
    return found


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    """A number as people write it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value).replace("|", "\\|").replace("\n", " ")


def experiment_page(path: Path) -> str:
    """One table of an experiment, with its picture and the file of its numbers."""
    stem = path.stem
    parts = [f"# {stem.replace('_', ', ')}\n", path.read_text(encoding="utf-8")]
    for suffix, text in ((".png", f"![{stem}]({stem}.png)"), (".json", "")):
        if path.with_suffix(suffix).is_file():
            parts.append((text or f"All numbers: [{stem}.json]({stem}.json)") + "\n")
    return "\n".join(parts)


def experiments_page(folder: Path) -> str:
    """All tables of experiments: conditions, verdicts, picture."""
    parts = [RESULTS_HEAD]
    for path in sorted(folder.glob("*.md")):
        conditions, _, rest = path.read_text(encoding="utf-8").partition("\n")
        rows = [line for line in rest.splitlines() if line.startswith("| ")]
        header = [cell.strip() for cell in rows[0].strip("|").split("|")] if rows else []
        link = f"../experiments/results/{path.name}"
        parts.append(f"## {path.stem.replace('_', ', ')}\n\n{conditions}\n")
        if "verdict" in header:
            column = header.index("verdict")
            verdicts = Counter(
                cells[column].strip()
                for row in rows[1:]
                if len(cells := row.strip("|").split("|")) == len(header)
            )
            told = ", ".join(f"{count} {name}" for name, count in verdicts.most_common())
            parts.append(f"{sum(verdicts.values())} rows: {told}.\n")
        parts.append(f"[The table]({link})\n")
        if path.with_suffix(".png").is_file():
            parts.append(
                f"![{path.stem}](../experiments/results/{path.with_suffix('.png').name})\n"
            )
    return "\n".join(parts)
