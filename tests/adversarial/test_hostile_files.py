"""Files that should end the verifier with a traceback, in hours, or out of memory."""

import json
import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adversarial.hostile_files import BUILDERS, Parts, parts_of
from tests.adversarial.mutations import mutate
from torch import nn

import everyformer as ef
from everyformer.bench import hostile
from everyformer.certify.program_size import ProgramSize
from everyformer.certify.verify import NETWORK_FILE
from everyformer.certify.work import Limits
from everyformer.checks.patterns import check_pattern
from everyformer.errors import (
    CertificateError,
    EveryformerError,
    InputError,
    WorkLimitError,
)
from everyformer.files.strict_json import read_json
from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.expression import Expression, Node
from everyformer.targets.box import Box, Grid

CASES = 120
SEED = "files"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


def outcome(folder: Path) -> str:
    """A verdict or a refusal; whatever else is raised fails the test."""
    with np.errstate(all="ignore"):
        try:
            found = ef.verify(folder)
        except (CertificateError, FileNotFoundError):
            return "refused"
    json.dumps(found.to_json())
    assert str(found).startswith(found.verdict.name)
    return found.verdict.name


def test_structural_mutations_end_in_a_verdict_or_a_refusal(
    place: Path, tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    for case in range(CASES):
        rng = random.Random(f"{SEED} {case}")
        parts = parts_of(rng.choice(list(BUILDERS)), place)
        mutate(rng, parts)
        folder = parts.write(tmp_path)
        counts[outcome(folder)] += 1
        try:
            ef.load(folder / NETWORK_FILE)
        except EveryformerError:
            counts["not loaded"] += 1
    assert set(counts) <= {"PROVED", "REFUTED", "UNKNOWN", "refused", "not loaded"}
    assert min(counts["PROVED"], counts["refused"], counts["not loaded"]) > 5


DOMAINS: dict[str, tuple[str, str]] = {
    "the least number": ("0", f"1/{2**1074}"),
    "1e160": (f"-{10**160}", f"{int(1e160)}"),
    "all of float64": (str(-int(1.7e308)), str(int(1.7e308))),
    "one ulp far away": (str(int(1e160)), str(int(np.nextafter(1e160, np.inf)))),
}


@pytest.mark.parametrize("domain", DOMAINS)
def test_domains_that_overflow(domain: str, place: Path, tmp_path: Path) -> None:
    for name in BUILDERS:
        for p in ("2", "64"):
            parts = parts_of(name, place)
            claim = parts.certificate["claim"]
            low, high = DOMAINS[domain]
            low = low if domain != "1e160" else str(-int(1e160))
            claim |= {"domain": [[low, high]] * claim["d"], "p": p, "metric": "d_p"}
            found = outcome(parts.write(tmp_path))
            # Where the volume is 1e-646 every distance is small.
            assert found != "PROVED" or domain == "the least number", (name, p)


@pytest.mark.rows(1)
@pytest.mark.parametrize("scale", [-1e300, 1e160])
def test_weights_that_overflow(scale: float, place: Path, tmp_path: Path) -> None:
    """Windows, shifts and values times 1e300: no bound, and no traceback."""
    for name in ("Theorem 2", "Theorem 3", "urpe", "wide", "partition"):
        for key in parts_of(name, place).tensors:
            parts = parts_of(name, place)
            with np.errstate(over="ignore"):
                moved = np.clip(parts.tensors[key] * scale, -1.7e308, 1.7e308)
            if (moved == parts.tensors[key]).all():
                continue
            parts.tensors[key] = moved
            assert outcome(parts.write(tmp_path)) in {"REFUTED", "UNKNOWN", "PROVED"}, key


def test_a_lipschitz_constant_of_thousands_of_digits(place: Path, tmp_path: Path) -> None:
    for value in ("9" * 3999, "9" * 400, f"1/{'9' * 3999}"):
        for key in ("lipschitz", "omega"):
            parts = parts_of("declared", place)
            assert parts.certificate["target"]["kind"] == "modulus"
            parts.certificate["target"][key] = value
            assert outcome(parts.write(tmp_path)) != "PROVED"


def test_more_cells_than_numbers_have_digits(place: Path, tmp_path: Path) -> None:
    """2^20000 cells, of which 20,001 orbits: beyond 1e308 and 4,300 digits."""
    for n in (1100, 20_000):
        parts = parts_of("Theorem 2", place)
        parts.description["architecture"]["seq_len"] = n
        parts.certificate["claim"]["n"] = n
        with pytest.raises(WorkLimitError, match=f"about 2.{n} cells"):
            ef.verify(parts.write(tmp_path))


def test_orbits_of_many_tokens() -> None:
    """25! is more than int64 holds; this was an OverflowError."""
    grid = Grid(2, 25, Box((0.0,), (1.0,)))
    found = grid.orbit_sizes(np.array([[0] * 12 + [1] * 13, [0] * 25]))
    assert found.tolist() == [5_200_300, 1]


def test_towers_have_no_ball() -> None:
    """Exponents of Arb have no end: a tower of powers once took all memory."""
    balls = BallArithmetic(64)
    with balls.working():
        for start, ends in (
            ((1.5, 2.0), (-np.inf, np.inf)),
            ((0.1, 0.5), (-5e-324, 5e-324)),
        ):
            ball = balls.box(*start)
            for _ in range(200):
                ball = balls.pow(ball, 64)
            assert balls.ends(ball) == ends


LONG = (
    hostile.plain_lines,
    hostile.four_million_plain_lines,
    hostile.lines_that_use_everything,
    hostile.lines_that_all_live,
    hostile.tower_of_powers,
    hostile.tower_of_exponentials,
)
"""Left to the benchmark; what they rest on is tested below."""

SHORT = [case for case in hostile.CASES if case[0] not in LONG]


@pytest.mark.parametrize("case", SHORT, ids=[change.__name__ for change, _ in SHORT])
def test_the_collection_ends_without_a_proof(case: Any, tmp_path: Path) -> None:
    change, base = case
    hostile.make(change, base, tmp_path)
    assert outcome(tmp_path) in {"UNKNOWN", "REFUTED", "refused"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux counts so")
def test_the_memory_of_a_case_is_its_own() -> None:
    """ru_maxrss of a new process is that of its parent, which holds 800 MB here."""
    held = np.ones(10**8)
    found = hostile.measure(None)
    assert found["outcome"] == "nothing"
    assert found["peak_bytes"] < 600e6 < held.nbytes


def test_a_program_is_measured_by_its_slopes() -> None:
    n = 50
    nodes = [Node("x", (j, 0)) for j in range(n)]
    nodes += [Node("add", (n - 1 + k, k % n)) for k in range(200)]
    size = ProgramSize.of(Expression(n, 1, tuple(nodes), ((n + 199,),) * n))
    assert size.lines == n + 200
    assert 150 * n <= size.slopes - size.lines <= 250 * n
    assert size.alive <= 4 * (n + 1)  # four lines, each with its slopes
    plain = [Node("x", (0, 0)), *(Node("neg", (k,)) for k in range(1000))]
    size = ProgramSize.of(Expression(1, 1, tuple(plain), ((1000,),)))
    assert (size.lines, size.slopes, size.alive) == (1001, 2002, 4)


def test_limits_refuse_with_the_numbers(place: Path, tmp_path: Path) -> None:
    folder = parts_of("Theorem 3", place).write(tmp_path)
    with pytest.raises(WorkLimitError, match=r"seconds on one core, more than .* of 1e-09"):
        ef.verify(folder, max_work=1e-9)
    with pytest.raises(WorkLimitError, match="more than the limit of 10"):
        ef.verify(folder, max_memory=10)
    with pytest.raises(WorkLimitError, match="more than the limit of 10"):
        ef.load(folder / NETWORK_FILE, max_memory=10)
    assert ef.verify(folder).verdict is ef.Verdict.PROVED
    Limits().check("this", 1.0, 1.0)


@pytest.mark.parametrize("method", ["selective-shift", "averaging", "partition", "auto"])
def test_tolerances_that_are_not_numbers(method: Any) -> None:
    for tol in (float("nan"), float("inf"), 0, -1.0):
        with pytest.raises(EveryformerError, match="is not a positive number"):
            ef.construct(ef.targets.reverse(2), tol=tol, method=method)


@pytest.mark.unhooked
@pytest.mark.parametrize("value", [True, np.True_, "1", 1.0, float("nan"), -1])
def test_counts_that_are_not_integers(value: Any) -> None:
    """`workers=True` was one process, and `d_model=True` a TypeError of torch."""
    square, module = ef.Target(lambda x: x * x, seq_len=1, d_model=1), nn.Linear(1, 1)
    uses: list[Callable[[], object]] = [
        lambda: ef.Computing(workers=value),
        lambda: ef.compare(square, 0.3, workers=value),
        lambda: ef.check(module, value, 1),
        lambda: ef.check(module, 2, value),
        lambda: ef.check(module, 2, 1, trials=value),
        lambda: ef.check(module, 2, 1, seed=value),
    ]
    for use in uses:
        with pytest.raises(InputError, match="is not an integer >= "):
            use()


@pytest.mark.unhooked
@pytest.mark.parametrize("method", ["selective-shift", "averaging", "partition", "auto"])
def test_texts_and_truth_values_are_not_numbers(method: Any) -> None:
    target = ef.targets.reverse(2)
    tolerances: list[Any] = ["0.1", True, None, np.True_, 1j]
    for tol in tolerances:
        with pytest.raises(EveryformerError):
            ef.construct(target, tol=tol, method=method)
    wrong: list[dict[str, Any]] = [{"p": "2"}, {"p": True}, {"p": 1j}]
    for given in (*wrong, {"grid": True}, {"grid": "4"}):
        arguments: dict[str, Any] = {"grid": 4, "method": method} | given
        with pytest.raises(EveryformerError):
            ef.construct(target, **arguments)


NO_LIMITS: list[Any] = [
    "1", "10 parsecs", b"1", None, True, np.True_, [1], 1j, 0, -1, 10**400, 10**5000,
    float("nan"), np.float64("nan"), float("inf"), Fraction(1, 3),
]  # fmt: skip


@pytest.mark.unhooked
@pytest.mark.parametrize("limit", NO_LIMITS, ids=type)
def test_limits_that_are_none(limit: Any, place: Path) -> None:
    """NaN was a limit that nothing exceeds; texts were a TypeError."""
    target, folder = ef.targets.reverse(2), place / "limits"
    if not folder.exists():
        ef.construct(target, grid=2).save(folder)
    pattern = ef.patterns.ring(30)
    calls: list[Callable[[], object]] = [
        lambda: ef.construct(target, grid=2, max_memory=limit),
        lambda: ef.construct(target, tol=0.5, max_memory=limit),
        lambda: ef.construct(target, tol=0.5, method="auto", max_memory=limit),
        lambda: ef.compare(target, 0.5, max_memory=limit),
        lambda: ef.verify(folder, max_memory=limit),
        lambda: ef.verify(folder, max_work=limit),
        lambda: ef.load(folder / NETWORK_FILE, max_memory=limit),
    ]
    if limit != 0 or isinstance(limit, bool):
        calls.append(lambda: check_pattern(pattern, time_limit=limit))
    for call in calls:
        with pytest.raises(
            InputError, match=r"(max_|time_)\w+=.* is not a .* finite number"
        ):
            call()


@pytest.mark.unhooked
def test_limits_that_are_numbers(tmp_path: Path) -> None:
    for memory in (1e9, np.int64(10**9), np.float32(1e9), 10**300):
        ef.construct(ef.targets.reverse(2), grid=2, max_memory=memory).save(tmp_path)  # pyright: ignore[reportArgumentType]
        found = ef.verify(tmp_path, max_work=np.int64(9), max_memory=memory)  # pyright: ignore[reportArgumentType]
        assert found.verdict is ef.Verdict.PROVED
        ef.load(tmp_path / NETWORK_FILE, max_memory=memory)  # pyright: ignore[reportArgumentType]


@pytest.mark.unhooked
def test_numbers_that_python_does_not_write() -> None:
    """repr of an integer with 4,300 digits is an error: messages ended in it."""
    huge, target = 10**5000, ef.targets.reverse(2)
    wrong: list[dict[str, Any]] = [
        {"tol": huge}, {"tol": huge, "method": "auto"}, {"grid": huge}, {"grid": -huge},
        {"grid": huge, "method": "averaging"}, {"grid": huge, "method": "partition"},
        {"grid": 4, "p": huge}, {"grid": 4, "method": ef.SelectiveShifts(spacing=huge)},
        {"grid": 4, "method": ef.Partition(decay=huge)},
        {"grid": 4, "method": ef.Partition(margin=huge)},
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises(EveryformerError, match="<a number of 16,610 bits>"):
            ef.construct(target, **arguments)
    for n, d in ((huge, 1), (2, huge)):
        with pytest.raises(EveryformerError, match=r"more than 1,048,576"):
            ef.Target(np.sin, n, d)


@pytest.mark.unhooked
def test_numbers_of_numpy_are_numbers() -> None:
    for tol in (np.float64(0.5), np.float32(0.5), np.int64(1)):
        built = ef.construct(ef.targets.reverse(2), tol=tol, p=np.int64(2))  # pyright: ignore[reportArgumentType]
        assert built.certificate.eps == tol


def test_a_key_twice_among_many() -> None:
    """Looking for it took the square of their number: 21 s for 40,000 keys."""
    keys = ",".join(f'"{k}":0' for k in range(300_000))
    with pytest.raises(ValueError, match="the key '299999' occurs twice"):
        read_json(f'{{{keys},"299999":1}}')


def test_empty_folders(tmp_path: Path) -> None:
    parts = Parts({}, {}, {}, None)
    assert outcome(parts.write(tmp_path)) == "refused"
