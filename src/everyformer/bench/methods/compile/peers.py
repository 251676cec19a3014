"""Programs that peers compile, compiled here: sizes, proved bounds, exactness on integers.

The programs are those of `peer_programs`. Each network is built and proved for real inputs
in [0, V - 1], then run on integers: a word counts as exact if every result is nearest to
what the program means. `benchmarks/peers/tracr_run.py` does the same with Tracr.
"""

import time
from typing import Any

import numpy as np
from rich.table import Table

from everyformer.bench.methods.compile.peer_programs import PROGRAMS, Program, vocabulary_of
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.construct.pipeline import Built, construct
from everyformer.errors import EveryformerError
from everyformer.progress import Progress, no_progress
from everyformer.targets.target import Target

TOL = 1e-6
SIZES = (5, 8, 12, 16, 32)

LONGEST = {"sort unique": 16}
"""Larger ones take more than two minutes: sort unique needs about 2 n^2 registers."""

MOST_WORK = 3e10
"""Multiplications on integer inputs, about; fewer inputs are run on large networks."""

FEWEST_INPUTS = 200
CHUNK = 2e8
"""Multiplications of one batch."""


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Compile every program at every size and run it on integers."""
    cases = [
        (name, n)
        for name in (("reverse", "histogram") if quick else PROGRAMS)
        for n in (SIZES[:1] if quick else SIZES)
        if n <= LONGEST.get(name, n)
    ]
    rows: list[dict[str, Any]] = []
    for done, (name, n) in enumerate(cases):
        progress(f"peers: {name}, n = {n}", done, len(cases))
        rows.append(row_of(PROGRAMS[name](n, vocabulary_of(name, n))))
    return {"theme": "peers", "environment": environment(), "tol": TOL, "rows": rows}


def target_of(program: Program) -> Target:
    """The continuous function of a program on [0, V - 1]."""
    top = float(program.vocabulary - 1)
    return Target(program.function, program.n, 1, domain=[(0.0, top)], name=program.name)


def row_of(program: Program) -> dict[str, Any]:
    """One program at one size."""
    row: dict[str, Any] = {"case": program.name, "n": program.n, "V": program.vocabulary}
    started = time.perf_counter()
    target = target_of(program)
    try:
        built = construct(target, tol=TOL, method="compile")
    except EveryformerError as error:
        return row | {"outcome": f"refused: {error}"}
    row["seconds"] = time.perf_counter() - started
    spec, cost, said = built.network.architecture, built.cost, built.certificate
    row |= {"blocks": cost.blocks, "width": spec.width, "heads": spec.num_heads}
    row |= {"parameters": cost.parameters, "nonzeros": cost.nonzeros}
    row["outcome"] = said.verdict.name
    for name, bound in (("proved", said.bound), ("proved_float64", said.float64_bound)):
        row[name] = None if bound is None else float(bound.value)
    return row | exactness(program, built)


def exactness(program: Program, built: Built) -> dict[str, Any]:
    """How many of the integer inputs have results nearest to what is meant."""
    words, work = program.inputs(), built.cost.parameters * program.n
    if len(words) * work > MOST_WORK:
        words = words[: max(FEWEST_INPUTS, int(MOST_WORK / work))]
    chunk = max(1, int(CHUNK / work))
    results = [
        built.network(words[i : i + chunk, :, None].astype(float))[..., 0]
        for i in range(0, len(words), chunk)
    ]
    exact, gap = program.exact(words, np.concatenate(results))
    return {
        "exact": exact,
        "inputs": len(words),
        "of": program.number_of_inputs,
        "largest_gap": gap,
    }


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "program": "{case}",
        "n": "{n}",
        "V": "{V}",
        "blocks": "{blocks:,}",
        "width": "{width:,}",
        "parameters": "{parameters:,}",
        "proved (float64)": "{told}",
        "exact": "{exact:,} of {inputs:,}",
        "s": "{seconds:.1f}",
    }
    rows: list[dict[str, Any]] = []
    for row in report["rows"]:
        bound = row.get("proved_float64")
        told = row["outcome"] if bound is None else f"{bound:.1e}"
        rows.append(row | ({"told": told} if "exact" in row else {"failed": told}))
    title = "Programs on tokens 0 .. V - 1, run on integers"
    return table_of(title, rows, columns, left=["program"], head=3, longest=60)
