"""What `everyformer check` does with a layer."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.table import Table

from everyformer.certify.verify import EXIT_CODES
from everyformer.checks.finding import Counterexample
from everyformer.checks.patterns import ASSUMPTIONS
from everyformer.checks.replay import Replayed
from everyformer.checks.replay import replay as run_again
from everyformer.checks.report import Report
from everyformer.checks.report import check as judge
from everyformer.checks.rules import RULES, rule_of
from everyformer.checks.subject import Subject, check_sizes
from everyformer.cli import attention_pictures, tables
from everyformer.cli.pattern_files import DEFAULT_N
from everyformer.cli.progress import progress_bar
from everyformer.cli.report_texts import answers, findings_table
from everyformer.cli.saving import check_new_folder, new_file, new_folder
from everyformer.cli.subjects import load_subject
from everyformer.layers.by_name import LAYER_NAMES

ENDING = "`everyformer check --explain CODE` tells what a rule means."


@dataclass(frozen=True)
class Choice:
    """What the command line says of the layers to check.

    Attributes:
        length: Number of tokens, if it is given.
        d: Width of a token.
        heads: Number of heads.
        flags: causal, bias and special_token, for layers of the library.
        trials: Draws of the weights.
        seed: What they are drawn from.
        layout: Where a module has its tokens.
        out: Folder to write.
        as_json: Print JSON and nothing else.

    Raises:
        InputError: If a size is not possible.
        OSError: If nothing can be written there.
    """

    length: int | None
    d: int
    heads: int
    flags: dict[str, bool]
    trials: int
    seed: int
    layout: str
    out: Path | None
    as_json: bool

    def __post_init__(self) -> None:
        """Refuse before anything is run."""
        check_sizes(self.n, self.d)
        if self.out is not None:
            check_new_folder(self.out, frozenset(), overwrite=False)

    @property
    def n(self) -> int:
        """Number of tokens."""
        return DEFAULT_N if self.length is None else self.length


def explain_rule(code: str) -> None:
    """Print what a rule or an assumption means."""
    text = ASSUMPTIONS.get(code.upper()) or rule_of(code).text
    tables.show((text or "").rstrip())


def check_one(subject: str, replay: Path | None, choice: Choice) -> int:
    """Judge one layer, or run a counterexample again; the exit code."""
    n, d, out = choice.n, choice.d, choice.out
    with progress_bar() as progress, redirect_stdout(sys.stderr):
        progress(f"check {subject}", 0, len(RULES))
        module = load_subject(subject, n, d, choice.heads, **choice.flags)
        judged = Subject.of(module, n, d, subject, choice.layout)
        if replay is None:
            report = judge(
                judged, trials=choice.trials, seed=choice.seed, progress=progress
            )
            code = EXIT_CODES[report.verdict]
            if out is not None:
                _save(report, judged, out)
        else:
            report = run_again(judged, Counterexample.load(replay))
            code = int(report.still_violates)
    if choice.as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    elif isinstance(report, Replayed):
        tables.show(str(report))
    else:
        tables.show(_heading(report), findings_table(report.findings), ENDING)
        if out is not None:
            tables.show(f"Wrote {out}.")
    return code


def _heading(report: Report) -> str:
    sizes = f"n = {report.seq_len}, d = {report.d_model}"
    heading = f"{report.verdict}: is {report.subject} universal? ({sizes})"
    return answers(heading, report.lp, report.sup)


def _save(report: Report, subject: Subject, out: Path) -> None:
    """Write the report, the counterexamples and the pictures."""
    with new_folder(out, frozenset(), overwrite=False) as place:
        for found in report.findings:
            if found.counterexample is not None:
                found.counterexample.save(place, report.subject)
        text = json.dumps(report.to_json(), indent=2) + "\n"
        (place / "report.json").write_text(text)
        for name, figure in attention_pictures.of_subject(subject).items():
            with new_file(place / name) as file:
                attention_pictures.save(figure, file)


def check_all(choice: Choice) -> None:
    """A line for each layer of the library, alone and with URPE."""
    n, d, out = choice.n, choice.d, choice.out
    trials, seed = choice.trials, choice.seed
    names = [*LAYER_NAMES[:-1], *(f"{name}+urpe" for name in LAYER_NAMES[:-1])]
    reports: list[Report] = []
    with progress_bar() as progress, redirect_stdout(sys.stderr):
        for k, name in enumerate(names):
            progress("check all layers", k, len(names))
            module = load_subject(name, n, d, choice.heads, **choice.flags)
            reports.append(judge(Subject.of(module, n, d, name), trials=trials, seed=seed))
    if out is not None:
        figure = attention_pictures.spreads(reports)
        with (
            new_folder(out, frozenset(), overwrite=False) as place,
            new_file(place / "spreads.png") as file,
        ):
            attention_pictures.save(figure, file)
    if choice.as_json:
        typer.echo(json.dumps([report.to_json() for report in reports], indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("layer", "universal?", "in L^p", "in the sup norm", "equal tokens"):
        table.add_column(heading, no_wrap=True)
    for report in reports:
        spread = report["EF003"].violation_sampled
        table.add_row(
            report.subject,
            str(report.verdict),
            str(report.lp.verdict),
            str(report.sup.verdict),
            "" if spread is None else f"spread {spread:.1e}",
        )
    tables.show(table)
    if out is not None:
        tables.show(f"Wrote {out / 'spreads.png'}.")
