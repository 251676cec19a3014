"""`everyformer methods`, and --method NAME --with KEY=VALUE."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Literal

import pytest

import everyformer as ef
from everyformer.cli.method_settings import read_method
from everyformer.construct.method import Method, Plan
from everyformer.construct.problem import Problem
from everyformer.construct.registry import METHODS

Command = Callable[..., Any]


def words(text: str) -> str:
    """A text without the layout of tables and messages."""
    return " ".join(text.replace("│", " ").split())


@dataclass(frozen=True)
class Guess(Method):
    """Weights by guessing."""

    dice: int = field(metadata={"help": "How many dice are thrown."})
    luck: Literal["good", "bad"] = field(default="bad", metadata={"help": "Of whom?"})
    share: Fraction | None = field(default=None, metadata={"help": "By default all."})
    again: bool = field(default=False, metadata={"help": "Throw twice."})
    hidden: int = 0

    @property
    def title(self) -> str:
        return "guessing"

    def plans(self, problem: Problem) -> Iterator[Plan]:
        yield from ()


def test_methods_lists_every_method_with_its_settings(everyformer: Command) -> None:
    shown = everyformer("methods").stdout
    for name, kind in METHODS.items():
        assert any(line.startswith(name) for line in shown.splitlines())
        assert (kind.__doc__ or "")[:20] in shown
    left = [line[:30] for line in shown.splitlines()]
    listed = [line.partition("=")[0].strip() for line in left if "=" in line]
    kinds: list[Any] = list(METHODS.values())
    found = [one for kind in kinds for one in fields(kind) if "help" in one.metadata]
    assert listed == [one.name for one in found]
    assert "selective-shift (default)" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_list_is_made_from_the_fields(
    everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method of somebody's needs a line in the registry, and nothing else."""
    monkeypatch.setitem(METHODS, "guess", Guess)
    shown = everyformer("methods").stdout.splitlines()
    (start,) = (at for at, line in enumerate(shown) if line.startswith("guess"))
    assert [words(line) for line in shown[start:]] == [
        "guess Weights by guessing.",
        "dice=INTEGER How many dice are thrown. [needed]",
        "luck=good|bad Of whom? [default: bad]",
        "share=NUMBER By default all.",
        "again=true|false Throw twice. [default: false]",
    ]
    given = ["dice=3", "luck=good", "share=2/3", "again=TRUE"]
    assert read_method("guess", given, 2) == Guess(3, "good", Fraction(2, 3), again=True)
    least = Guess(-1, share=Fraction(1, 1000))
    assert read_method("guess", ["dice=-1", "share=1e-3"], 2) == least


@pytest.mark.parametrize("command", ["plan", "construct"])
def test_a_method_without_plans_is_an_error_in_words(
    command: str, everyformer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nothing meets the tolerance of --method auto."""
    monkeypatch.setitem(METHODS, "guess", Guess)
    arguments = (command, "sort", "--method", "guess", "--with", "dice=2")
    more = ("-o", "out") if command == "construct" else ()
    wrong = everyformer(*arguments, "--tol", 0.1, *more, code=2).stderr
    assert wrong.startswith(
        "Error: No network that can be built brings d_2(sort, g) to tol"
    )
    wrong = everyformer(*arguments, "--grid", 4, *more, code=2).stderr
    assert wrong.startswith("Error: The method has no plan for sort at grid=4.")


@pytest.mark.parametrize(
    ("name", "given", "method"),
    [
        ("selective-shift", [], ef.SelectiveShifts()),
        (
            "selective-shift",
            ["positional=true", "softened=false", "spacing=8"],
            ef.SelectiveShifts(positional=True, softened=False, spacing=8),
        ),
        ("urpe", ["softened=False"], ef.UrpeShifts(softened=False)),
        ("averaging", ["variant=two-step"], ef.Averaging("two-step")),
        ("averaging", ["mixer=bilinear"], ef.Averaging(mixer="bilinear")),
        ("compile", ["variant=log-depth"], ef.Compile(variant="log-depth")),
        ("partition", ["decay=3/4"], ef.Partition(decay=Fraction(3, 4))),
        ("partition", ["decay=0.75", "margin=3"], ef.Partition(Fraction(3, 4), 3)),
        ("auto", [], ef.Cheapest()),
    ],
)
def test_settings_are_those_of_the_value(
    name: str, given: list[str], method: ef.Method
) -> None:
    assert read_method(name, given, 3) == method


def test_a_pattern_its_parameters_and_a_path() -> None:
    given = ["pattern=strided", "variant=sweep", "width=2", "gamma=2,1,3,4"]
    found = read_method("sparse", given, 4)
    assert isinstance(found, ef.SparseShifts)
    assert found.pattern.to_json() == ef.patterns.strided(4, 2).to_json()
    assert (found.variant, found.gamma) == ("sweep", (1, 0, 2, 3))
    found = read_method("sparse", ["half-width=1", "pattern=window"], 4)
    assert isinstance(found, ef.SparseShifts)
    assert found.pattern.to_json() == ef.patterns.window(4, 1).to_json()


WRONG: list[tuple[list[str], str]] = [
    (
        ["--method", "magic"],
        "--method magic does not exist. Choose one of selective-shi",
    ),
    (["--with", "variant=wide"], "method selective-shift has no such setting. It has posi"),
    (
        ["--method", "auto", "--with", "also=urpe"],
        "method auto has no such setting. It has",
    ),
    (
        ["--method", "sparse"],
        "--method sparse needs --with pattern=...: see `everyforme",
    ),
    (["--method", "sparse", "--with", "width=2"], "--method sparse needs --with pattern="),
    (
        ["--with", "positional"],
        "--with positional: write KEY=VALUE, such as variant=narro",
    ),
    (["--with", "positional="], "--with positional=: write KEY=VALUE"),
    (["--with", "=true"], "--with =true: write KEY=VALUE"),
    (
        ["--with", "positional=true", "--with", "positional=false"],
        "--with positional is given twice, true and false. Leave one out.",
    ),
    (["--with", "softened=no"], "--with softened=no: write true or false."),
    (["--with", "spacing=1.5"], "--with spacing=1.5 is not a whole number."),
    (
        ["--method", "averaging", "--with", "variant=thin"],
        "--with variant=thin: choose one of wide, narrow, two-step.",
    ),
    (["--method", "partition", "--with", "decay=1/0"], "--with decay=1/0 is not a number."),
    (
        ["--method", "partition", "--with", "decay=much"],
        "--with decay=much is not a num",
    ),
    (["--method", "partition", "--with", "margin=two"], "margin=two is not a whole number"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
@pytest.mark.parametrize("command", ["plan", "construct"])
def test_what_is_refused(
    command: str, arguments: list[str], message: str, everyformer: Command
) -> None:
    more = ["-o", "out"] if command == "construct" else []
    result = everyformer(command, "sort", "--grid", 4, *arguments, *more, code=2)
    assert message in words(result.stderr)
    assert result.stdout == ""


def test_the_value_and_the_words_plan_the_same(everyformer: Command) -> None:
    arguments = ("plan", "centring", "--grid", 4, "--json", "--method", "averaging")
    settings = ("--with", "variant=narrow", "--with", "positional=true")
    shown = json.loads(everyformer(*arguments, *settings).stdout)
    method = ef.Averaging("narrow", positional=True)
    plan = ef.plan(ef.targets.centring(2, 1), 4, method=method)
    assert shown == plan.to_json() | {"refusal": None}
