"""What the program loads before it is needed: nothing."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everyformer as ef
from everyformer.bench.themes import THEMES
from everyformer.certify.work import MAX_WORK
from everyformer.checks.patterns import ASSUMPTIONS
from everyformer.checks.report import DEFAULT_TRIALS
from everyformer.checks.rules import RULES
from everyformer.cli import defaults
from everyformer.cli.commands import COMMANDS, load
from everyformer.cli.pattern_files import DEFAULT_N
from everyformer.experiments.registry import EXPERIMENTS
from everyformer.files.network_file import MAX_MEMORY
from everyformer.layers.by_name import LAYER_NAMES
from everyformer.model.executor import NAMES
from everyformer.patterns.assumption_1 import TIME_LIMIT

HEAVY = {"torch", "numba", "flint", "scipy", "matplotlib", "networkx", "distributed"}
OURS = {"everyformer.construct.pipeline", "everyformer.certify.verify"}

RUN = """
import sys
from everyformer.cli.app import main
sys.argv = ["everyformer", *{arguments!r}]
try:
    main()
except SystemExit as end:
    code = end.code
print("#", code, *sys.modules)
"""


def loaded(program: str) -> tuple[str, set[str]]:
    """The exit code, and the modules that a fresh interpreter has at the end."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, *modules = done.stdout.rpartition("# ")[2].split()
    return code, set(modules)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], "0"),
        (["constrict"], "2"),
        (["construct", "--tol", "x"], "2"),
        (["check", "--heads", "9", "none"], "2"),
        (["check-all", "--replay", "x.npy"], "2"),
        (["check-module", "--help"], "0"),
        (["check-pattern", "star", "--grid", "4"], "2"),
        (["explain"], "2"),
        (["explain", "EF999"], "2"),
        (["check", "nothing"], "2"),
        (["bench", "speed"], "2"),
        (["reproduce", "--size", "large", "urpe-synthetic"], "2"),
        (["reproduce", "urpe-syntetic"], "2"),
    ],
)
def test_help_and_usage_errors_load_nothing(arguments: list[str], code: str) -> None:
    ended, modules = loaded(RUN.format(arguments=arguments))
    assert ended == code
    assert not modules & (HEAVY | OURS)


def test_a_refused_tolerance_loads_no_drawing(tmp_path: Path) -> None:
    target = ["sort", "-n", "3", "--tol", "1e-4", "-o", str(tmp_path / "out")]
    ended, modules = loaded(RUN.format(arguments=["construct", *target]))
    assert ended == "2"
    assert not modules & {"matplotlib", "torch"}


def test_the_package_loads_nothing() -> None:
    program = "import sys, everyformer as ef; ef.Verdict; print('#', 0, *sys.modules)"
    assert not loaded(program)[1] & (HEAVY | OURS)


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "everyformer", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"everyformer {ef.__version__}\n"


def test_building_and_verifying_do_without_torch() -> None:
    """The folder `construct` does not take the place of the function."""
    program = """
import sys, everyformer.construct.pipeline, everyformer as ef
built = ef.construct(ef.targets.reverse(2, 1), grid=2)
assert built.certificate.verdict is ef.Verdict.PROVED
print("#", 0, *sys.modules)
"""
    modules = loaded(program)[1]
    assert modules >= OURS
    assert not modules & {"torch", "matplotlib", "networkx", "distributed", "scipy"}


def test_the_table_of_public_names_is_what_type_checkers_see() -> None:
    tree = ast.parse(Path(ef.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: one.module
        for one in block.body
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
    }
    assert seen.keys() == set(ef.__all__)
    for name, module in seen.items():
        assert module is not None
        found = getattr(importlib.import_module(module), name)
        assert found is getattr(ef, name)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="'everyformer' has no attribute 'constrict'"):
        getattr(ef, "constrict")  # noqa: B009
    assert set(ef.__all__) <= set(dir(ef))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_is_what_they_say(name: str) -> None:
    command: Any = load(name)
    assert command.__name__ == name.replace("-", "_")
    assert (command.__doc__ or "").splitlines()[0] == COMMANDS[name].help
    assert len(COMMANDS[name].help) <= 54, "more is cut off in 80 columns"


def test_the_options_say_what_the_library_assumes() -> None:
    assert tuple(THEMES) == defaults.THEMES
    assert NAMES == defaults.EXECUTORS
    assert LAYER_NAMES == defaults.LAYERS
    assert tuple(EXPERIMENTS) == defaults.EXPERIMENTS
    assert {rule.code: rule.name for rule in RULES} == defaults.RULES
    assert tuple(ASSUMPTIONS) == defaults.ASSUMPTIONS
    assert defaults.CHECK_SEQ_LEN == DEFAULT_N
    assert defaults.TRIALS == DEFAULT_TRIALS
    assert defaults.SEARCH_SECONDS == TIME_LIMIT
    assert defaults.MAX_WORK == MAX_WORK
    assert defaults.MAX_MEMORY * 2**30 == MAX_MEMORY
