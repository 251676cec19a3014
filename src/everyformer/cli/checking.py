"""What `check`, `check-all` and `check-module` do with layers."""

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text
from torch import nn

from everyformer.checks.finding import Counterexample
from everyformer.checks.replay import replay as run_again
from everyformer.checks.report import Report
from everyformer.checks.report import check as judge
from everyformer.checks.rules import RULES
from everyformer.checks.subject import Subject, check_sizes
from everyformer.cli import attention_pictures, tables
from everyformer.cli.progress import progress_bar
from everyformer.cli.report_texts import answers, findings_table
from everyformer.cli.saving import new_file, new_folder
from everyformer.cli.subjects import Variant, layer_of_the_library
from everyformer.cli.tables import coloured
from everyformer.layers.by_name import LAYER_NAMES
from everyformer.notebook import News

ENDING = "`everyformer explain CODE` tells what a rule means."


@dataclass(frozen=True)
class Choice:
    """What the command line says of the layers to check.

    Attributes:
        seq_len: Number of tokens.
        d_model: Width of a token.
        heads: Number of heads.
        trials: Draws of the weights.
        seed: What they are drawn from.
        out: Folder to write.
        as_json: Print JSON and nothing else.

    Raises:
        InputError: If a size is not possible.
    """

    seq_len: int
    d_model: int
    heads: int
    trials: int
    seed: int
    out: Path | None
    as_json: bool

    def __post_init__(self) -> None:
        """Refuse before anything is run."""
        check_sizes(self.seq_len, self.d_model)

    def show(self, result: object, *texts: str | Text | Table) -> None:
        """Print a result as JSON, or else what it is in words, and where it was written."""
        written = () if self.out is None else (f"Wrote {self.out}.",)
        tables.answer(result, *texts, *written, as_json=self.as_json)


def check_one(
    name: str,
    make: Callable[[], nn.Module],
    choice: Choice,
    replay: Path | None,
    layout: str = "auto",
    *,
    feed_forward: bool = True,
) -> None:
    """Judge one layer, or run a counterexample again.

    Raises:
        typer.Exit: With the exit code.
    """
    if replay is not None and choice.out is not None:
        raise typer.BadParameter("--replay writes nothing. Give it without --out.")
    with progress_bar() as progress, redirect_stdout(sys.stderr):
        progress(f"check {name}", 0, len(RULES))
        subject = Subject.of(make(), choice.seq_len, choice.d_model, name, layout)
        if replay is None:
            report = judge(
                subject,
                trials=choice.trials,
                seed=choice.seed,
                feed_forward=feed_forward,
                progress=progress,
            )
            code = report.verdict.exit_code
            told = answers(report.subject, report.sizes, report.lp, report.sup)
            words = (*told, findings_table(report.findings), ENDING)
            if choice.out is not None:
                _save(report, subject, choice.out)
        else:
            report = run_again(subject, Counterexample.load(replay))
            code = int(report.still_violates)
            words = (str(report),)
    choice.show(report.to_json(), *words)
    raise typer.Exit(code)


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


def check_layers(choice: Choice, variant: Variant) -> None:
    """A line for each layer of the library, alone and with URPE."""
    n, d = choice.seq_len, choice.d_model
    names = [*LAYER_NAMES[:-1], *(f"{name}+urpe" for name in LAYER_NAMES[:-1])]
    reports: list[Report] = []
    with progress_bar() as progress, redirect_stdout(sys.stderr):
        for k, name in enumerate(names):
            progress("check all layers", k, len(names))
            module = layer_of_the_library(name, n, d, choice.heads, variant)
            subject = Subject.of(module, n, d, name)
            reports.append(judge(subject, trials=choice.trials, seed=choice.seed))
    found = [report.to_json() for report in reports]
    if choice.out is not None:
        with new_folder(choice.out, frozenset(), overwrite=False) as place:
            (place / "report.json").write_text(json.dumps(found, indent=2) + "\n")
            with new_file(place / "spreads.png") as file:
                attention_pictures.save(attention_pictures.spreads(reports), file)
    choice.show(found, _verdicts(reports))


def _verdicts(reports: list[Report]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("layer", "universal?", "in L^p", "in the sup norm", "equal tokens"):
        table.add_column(heading, no_wrap=True)
    for report in reports:
        spread = report["EF003"].violation_sampled
        verdicts = (report.verdict, report.lp.verdict, report.sup.verdict)
        table.add_row(
            report.subject,
            *(coloured(News.of(verdict)) for verdict in verdicts),
            "" if spread is None else f"spread {spread:.1e}",
        )
    return table
