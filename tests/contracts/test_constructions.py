"""The contract of a construction, for every method; and a sixth one, added in this file."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tests.contracts.construction import ConstructionContract
from typer.testing import CliRunner

import everyformer
import everyformer as ef
from everyformer.certify.bound import Bound
from everyformer.cli.app import app
from everyformer.construct import registry
from everyformer.construct.method import Count, Method, Plan
from everyformer.construct.problem import Problem
from everyformer.construct.table_error import TableErrors
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.network import Network
from everyformer.model.registers import Registers
from everyformer.model.stacks import FeedForwardStack, Stage
from everyformer.progress import Progress, no_progress
from everyformer.targets import centring, reverse
from everyformer.targets.target import Target


class TestSelectiveShifts(ConstructionContract):
    method, target, tol = ef.SelectiveShifts(), reverse(2, 1), 0.2


class TestSelectiveShiftsWithoutPositions(ConstructionContract):
    method, target, tol = ef.SelectiveShifts(positional=False), centring(2, 1), 0.3


class TestUrpeShifts(ConstructionContract):
    method, target, tol = ef.UrpeShifts(), reverse(2, 1), 0.2


class TestSparseShifts(ConstructionContract):
    method, target, tol = ef.SparseShifts(ef.patterns.star(2)), reverse(2, 1), 0.2


class TestAveraging(ConstructionContract):
    method, target, tol = ef.Averaging(), reverse(2, 1), 0.1


class TestPartition(ConstructionContract):
    method, target, tol = ef.Partition(), reverse(2, 1), 0.1


class TestCompile(ConstructionContract):
    method, target, tol = ef.Compile(), centring(2, 1), 1e-6


@dataclass(frozen=True)
class ConstantPlan(Plan):
    """The constant that f is at the centre of the box: no grid, no table."""

    seq_len: int
    d_model: int
    value: float

    @property
    def label(self) -> str:
        return "a constant"

    def count(self) -> Count:
        numbers = 11 + 2 * self.seq_len
        return Count(1, 0, numbers, numbers, numbers, 8 * numbers, 16 * numbers)

    def planned_bound(self, errors: TableErrors | None) -> Bound | None:
        """The range of f, cell by cell, from its value."""
        if errors is None:
            return None
        error = errors.at(2)
        far = max(abs(Fraction(self.value) - end) for pair in error.ranges for end in pair)
        entries = self.seq_len * self.d_model
        return Bound(far * entries, "as far as f ranges", "tests/contracts")

    def build(self, target: Target, progress: Progress = no_progress) -> Network:
        """One block that does nothing; the result was there from the start."""
        start = np.zeros((self.seq_len, 2))
        start[:, 1] = self.value
        nothing = FeedForwardStack(
            np.zeros((1, 1, 2)), np.zeros((1, 1)), np.zeros((1, 2, 1)), np.zeros((1, 2))
        )
        spec = ArchitectureSpec(
            *(self.seq_len, self.d_model, 1, 1, 1, "softmax", "relu", False), width=2
        )
        held = Registers(np.array([[1.0], [0.0]]), start, np.array([[0.0, 1.0]]))
        return Network(spec, (Stage("idle", "here", feed_forward=nothing),), registers=held)


@dataclass(frozen=True)
class Constant(Method):
    """A constant, for functions that hardly vary."""

    value: int | None = field(default=None, metadata={"help": "The constant."})

    @property
    def title(self) -> str:
        return "constant"

    def plans(self, problem: Problem) -> Iterator[ConstantPlan]:
        n, d = problem.target.seq_len, problem.target.d_model
        value = self.value
        if value is None:
            value = float(problem.target(np.full((1, n, d), 0.5)).mean())
        yield ConstantPlan(n, d, value)


def nearly_flat(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.01 * x


class TestConstant(ConstructionContract):
    method, target, tol = Constant(), Target(nearly_flat, 2, 1), 0.05


def test_a_new_method_is_one_line_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.METHODS, "constant", Constant)
    built = ef.construct(Target(nearly_flat, 2, 1), tol=0.05, method="constant")
    assert built.certificate.verdict is ef.Verdict.PROVED
    shown = CliRunner().invoke(app, ["methods"])
    assert "constant" in shown.output
    assert "A constant, for functions that hardly vary." in " ".join(shown.output.split())
    planned = CliRunner().invoke(
        app,
        ["plan", "sort", "--grid", "2", "--method", "constant", "--with", "value=1"],
    )
    assert planned.exit_code == 0, planned.output
    assert "a constant" in planned.output


SOURCE = Path(everyformer.__file__).parent
OWN = {
    "shifts": ("SelectiveShifts", "UrpeShifts", "SparseShifts", '"selective-shift"'),
    "averaging": ("Averaging", '"averaging"'),
    "partition": ("Partition", '"partition"'),
    "compile": ("Compile",),
}
"""What each folder of a method calls its own; "compile" is a word of torch, too."""

FOLDERS = ("construct", "certify", "bench/methods")
"""Each has a folder or a module of the method's own; so has the narration."""


@pytest.mark.parametrize("folder", OWN)
def test_nothing_but_its_folder_and_the_registry_knows_a_method(folder: str) -> None:
    ours = [SOURCE / place / folder for place in FOLDERS]
    known = {SOURCE / "construct" / "registry.py", SOURCE / "__init__.py"}
    assert all(path.is_file() for path in known)
    known |= {SOURCE / place / f"{folder}.py" for place in (*FOLDERS, "narration")}
    names = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in OWN[folder]))
    for path in SOURCE.rglob("*.py"):
        if path in known or any(place in path.parents for place in ours):
            continue
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
        assert names.search(code) is None, path


def test_no_plan_is_told_apart_by_its_class() -> None:
    for path in (SOURCE / "construct").rglob("*.py"):
        assert re.search(r"isinstance\([^()]*plan\w*, ", path.read_text()) is None, path


def test_construct_is_a_loop() -> None:
    lines = inspect.getsource(ef.construct).split('"""')[2].strip().splitlines()
    assert len(lines) <= 30
    assert len(inspect.signature(ef.construct).parameters) <= 8
