"""Whatever the documentation and the benchmarks build passes the default limits."""

import json
from pathlib import Path

import pytest
from tests.plans import grid_plan

import everyformer as ef
from everyformer import patterns
from everyformer.bench.certificates import CASES
from everyformer.bench.constructions import ORDER_GRIDS, wave
from everyformer.certify.program_size import ProgramSize
from everyformer.certify.prove import MAX_REPRESENTATIVES
from everyformer.certify.work import Examined, Limits, check_cells, check_work
from everyformer.cli.commands.demo import swap_mean
from everyformer.errors import WorkLimitError
from everyformer.targets.box import Grid
from everyformer.targets.gallery import GALLERY

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def expected(
    target: ef.Target, K: int, parameters: int, *, anchored: bool, symmetric: bool = False
) -> Examined:
    """What verifying such a network would examine, without building it."""
    grid = Grid(K, target.seq_len, target.domain)
    count = check_cells(grid, symmetric=symmetric, most=MAX_REPRESENTATIVES)
    assert target.expression is not None
    size = ProgramSize.of(target.expression)
    N = target.seq_len * target.d_model
    return Examined(count, N, parameters, anchored, size)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_benchmark_of_certificates(case: tuple[str, int, int, int, bool]) -> None:
    name, n, d, K, orbits = case
    target = GALLERY[name](n, d)
    size = ef.plan(target, K).count().parameters
    found = expected(target, K, size, anchored=False, symmetric=orbits)
    check_work(found, Limits())


def test_the_benchmark_of_constructions() -> None:
    files = sorted(RESULTS.glob("constructions_cpu_*.json"))
    rows = json.loads(files[-1].read_text())["rows"]
    built = [row for row in rows if row["refusal"] is None and row["K"] is not None]
    assert len(built) > 50
    for row in built:
        anchored = row["method"] == "partition of unity"
        target = GALLERY[row["target"]](2, 1)
        check_work(
            expected(target, row["K"], row["parameters"], anchored=anchored), Limits()
        )
    for K in ORDER_GRIDS:
        check_work(expected(wave(), K, 10**6, anchored=True), Limits())


def test_the_demo_and_the_documentation() -> None:
    demo = ef.Target(swap_mean, 3, 1, equivariant=True)
    reverse = ef.targets.reverse
    for planned in (
        ef.plan(demo, 16),
        ef.plan(reverse(3, 1), 16),
        ef.plan(reverse(2, 1), 64, method="averaging"),
        ef.plan(reverse(4, 1), 2, method=ef.SparseShifts(patterns.star(4))),
    ):
        n = grid_plan(planned).shape.seq_len
        target = demo if n == 3 else reverse(n, 1)
        found = expected(target, planned.cells, planned.count().parameters, anchored=False)
        check_work(found, Limits())


def test_more_than_the_limits_allow() -> None:
    """The control: a hundred times the work, or the memory, is refused."""
    size = ProgramSize(10**6, 10**8, 10**4)
    for examined in (
        Examined(2**20, 4, 10**4, False, size),
        Examined(8, 2, 10**9, False, None),
        Examined(2**13, 2, 10, False, ProgramSize(10**6, 2 * 10**6, 10**6)),
    ):
        with pytest.raises(WorkLimitError, match="more than the limit"):
            check_work(examined, Limits())
