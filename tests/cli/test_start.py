"""What the program loads before it is needed: nothing."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everyformer as ef
from everyformer.certify.work import MAX_WORK
from everyformer.checks.patterns import ASSUMPTIONS
from everyformer.checks.report import DEFAULT_TRIALS
from everyformer.checks.rules import RULES
from everyformer.cli import defaults
from everyformer.cli.commands import COMMANDS, load
from everyformer.cli.names import methods_and_default
from everyformer.cli.pattern_files import DEFAULT_N, EDGES, MASKS
from everyformer.construct.registry import DEFAULT, METHODS
from everyformer.experiments.registry import EXPERIMENTS
from everyformer.files.network_file import MAX_MEMORY
from everyformer.layers.by_name import LAYER_NAMES
from everyformer.model.executor import NAMES
from everyformer.patterns.assumption_1 import TIME_LIMIT
from everyformer.patterns.by_name import GENERATORS
from everyformer.patterns.probability_maps import NAMED, WITH_PARAMETER
from everyformer.targets.gallery import GALLERY

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


MANY = """
import os, sys
from everyformer.cli.app import main
for place, case in enumerate({cases!r}):
    sys.argv = ["everyformer", *case.split()]
    code = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    found = {heavy!r} & set(sys.modules)
    if found or code not in (0, 2):
        break
print("#", place, code, *found)
"""

USAGE = """
--help
constrict
construct --help
construct --tol x
construct srot --grid 4 -o out
construct sort --grid 4 -o out --method avg
construct sort --grid 4 -o full
construct sort --grid 4 -o no/out
construct nofile.py:f --grid 4 -o out
construct nofile.py --grid 4 -o out
construct mine.py:f -n 3 --grid 4 -o out
construct sort --tol 0.1 --grid 4 -o out
plan srot --grid 4
plan sort --grid 4 --method avg
plan srot --compare --tol 0.1
plan sort --compare --tol 0.1 --method avg
plan sort --compare --tol 0.1 --picture x.gif
run full --input x.npy --output y.npy --executor fast
run nowhere --input x.npy --output y.npy
run full --input x.npy --output no/y.npy
run full --input x.npy --output y.npy
verify nowhere
verify full
verify full --target srot
verify full --target nofile.py:f
inspect nowhere
inspect full --picture x.gif
inspect full --picture no/x.png
inspect full --target srot
inspect full
explore
explore srot
explore sort --method avg
explore --pattern strr
explore --check nothing
explore sort -o no/page.html
export full --onnx x.foo
export full --onnx no/x.onnx
export full --onnx x.onnx
export nowhere --torch x.pt
contextual-mapping nowhere
contextual-mapping full
ablate nowhere --stage x
ablate full --stage x --half none
ablate full --stage x -o full
check nothing
check --heads 9 none
check --heads 3 none
check-all --heads 3
check none -o full
check none --replay none.npy
check-all --replay x.npy
check-all -o full
check-module --help
check-module x
check-module nofile.py:x
check-module mine.py:x -o full
check-pattern strr
check-pattern star.xyz
check-pattern nofile.npy
check-pattern nofile.py:x
check-pattern star --grid 4
check-pattern strided --with width=x
check-pattern strided --with foo=8
check-pattern star --rho max
check-pattern star --rho nofile.py:f
check-pattern star -o full
check-pattern star --picture x.gif
check-pattern star --picture no/x.png
explain
explain EF999
bench speed
bench execution --resume
bench execution --only x
reproduce urpe-syntetic
reproduce urpe-synthetic --size large
reproduce mixers-bert --size reduced
reproduce urpe-synthetic --seeds a
reproduce urpe-synthetic --set steps
reproduce urpe-synthetic --import-state x
contexts nowhere
contexts full --picture x.gif
data pakc
data pack
data pack nosuch --from full
data pack enwiki-wp --from nowhere
data overlap enwiki-words --from full
demo -o full
demo -o no/out
targets x
methods x
""".strip().splitlines()


def test_help_and_usage_errors_load_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full", "own.txt").touch()
    Path("mine.py").touch()
    Path("x.npy").touch()
    place, told = loaded(MANY.format(cases=USAGE, heavy=HEAVY | OURS))
    assert told == {"2"}, f"{USAGE[int(place)]} ends with its code and loads: {told}"
    assert int(place) == len(USAGE) - 1


def test_what_a_usage_error_must_not_load_is_seen() -> None:
    """A control: a command that works loads what the errors must not."""
    cases = ["explain EF999", "check none -n 3 -d 2 --trials 1 --json"]
    place, told = loaded(MANY.format(cases=cases, heavy=HEAVY | OURS))
    assert place == "1"
    assert "torch" in told


def test_a_refused_tolerance_loads_no_drawing(tmp_path: Path) -> None:
    target = ["sort", "-n", "3", "--tol", "1e-4", "-o", str(tmp_path / "out")]
    ended, modules = loaded(RUN.format(arguments=["construct", *target]))
    assert ended == "2"
    assert not modules & {"matplotlib", "torch"}


def test_judging_a_pattern_does_without_torch() -> None:
    ended, modules = loaded(RUN.format(arguments=["check-pattern", "star", "-n", "8"]))
    assert ended == "0"
    assert "everyformer.checks.patterns" in modules
    assert "torch" not in modules


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
    assert (command.__doc__ or "").splitlines()[0] == COMMANDS[name]
    assert len(COMMANDS[name]) <= 54, "more is cut off in 80 columns"


def test_the_names_of_methods_are_those_of_the_registry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "everyformer.construct.registry")
    assert methods_and_default() == (tuple(METHODS), DEFAULT)
    monkeypatch.undo()
    monkeypatch.setitem(METHODS, "mine", METHODS[DEFAULT])
    assert "mine" in methods_and_default()[0]


def test_the_options_say_what_the_library_assumes() -> None:
    assert tuple(GALLERY) == defaults.TARGETS
    assert tuple(GENERATORS) == defaults.PATTERNS
    assert (MASKS, *EDGES) == defaults.PATTERN_FILES
    assert tuple(NAMED) == defaults.RHOS
    assert {"top-k", *WITH_PARAMETER} == defaults.RHOS_OF_A_NUMBER.keys()
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
