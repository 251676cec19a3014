"""Numpy programs from end to end: built, proved, saved, verified, run everywhere."""

import importlib
import math
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import everyformer as ef
from everyformer.bench.methods.compile.compiling import (
    dot_attention,
    extended,
    mlp,
    normalise,
    ordered,
    product,
    random_points,
    soft_attention,
    transformer_block,
)
from everyformer.certify.compile.prove import read_program
from everyformer.certify.compile.untold import Untold
from everyformer.construct.certificates import as_stored
from everyformer.construct.compile.lifting.lift import lift
from everyformer.construct.compile.plan import cheaper, followed
from everyformer.construct.compile.precision import Precision, kinds_of
from everyformer.errors import (
    DomainError,
    ExpressionError,
    GridError,
    TargetError,
    ToleranceError,
)
from everyformer.targets import gallery

Function = Callable[[np.ndarray], np.ndarray]

GALLERY = (
    "centring", "soft_attention", "distance_to_maximum", "smooth_rank", "smooth_bump",
    "sort", "reverse", "first_token", "prefix_mean", "shift",
)  # fmt: skip


def stable_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def causal(x: np.ndarray) -> np.ndarray:
    n = x.shape[-2]
    w = np.exp(x @ np.swapaxes(x, -1, -2)) * np.tril(np.ones((n, n)))
    return (w / w.sum(axis=-1, keepdims=True)) @ x


def causal_sum(x: np.ndarray) -> np.ndarray:
    gaps = x[..., :, None, :] - x[..., None, :, :]
    w = np.exp(-(gaps**2).sum(axis=-1)) * np.tri(x.shape[-2])
    return (w @ x) / w.sum(axis=-1, keepdims=True)


def whole_weights(x: np.ndarray) -> np.ndarray:
    w = np.exp(x @ np.swapaxes(x, -1, -2))
    a = (w @ (x + 0.5)) / w.sum(axis=-1, keepdims=True)
    return a + 1 - (w / w.sum(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)


def maxima_of_sums(x: np.ndarray) -> np.ndarray:
    """One number is part of both sides."""
    y = x[..., ::-1]
    return np.maximum(x, x + y - 0.5) + np.minimum(y - x, y)


def two_conditions(x: np.ndarray) -> np.ndarray:
    inside = np.where((x > 0.25) & (x < 0.75), x, np.where(x >= 0.75, 0.75, 0.25))
    return inside + np.where(x < 0.125, 0.125, np.where(x > 0.5, 0.5, x))


def pieces(x: np.ndarray) -> np.ndarray:
    """Curved pieces that meet: Huber's loss, ELU, a ramp, a product, smoothstep."""
    t, y = np.abs(x - 0.5), x[..., ::-1]
    huber = np.where(t < 0.25, (x - 0.5) ** 2 / 2, 0.25 * (t - 0.125))
    elu = np.where(x > 0.5, x - 0.5, np.exp(x - 0.5) - 1)
    leaky = np.where(x > 0.5, x - 0.5, 0.125 * (x - 0.5))
    bounded = np.where(x > 0.5, x * y, 0.5 * y)
    u = 2 * x - 0.5
    step = np.where(u <= 0, 0, np.where(u >= 1, 1, 3 * u**2 - 2 * u**3))
    return huber + elu + leaky + bounded + step


def gated(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-4 * x)) + x.mean(axis=-2, keepdims=True) ** 2


def looped(x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    for j in range(x.shape[-2]):
        y[..., j, :] = x[..., : j + 1, :].sum(axis=-2) / (j + 1)
    return y


def clipped(x: np.ndarray) -> np.ndarray:
    """The second bound never binds, the first sometimes does."""
    return np.clip(x - x.mean(axis=-2, keepdims=True), -0.25, 0.5) + np.clip(
        2 * x - 1, 0, 1
    )


def named(x: np.ndarray) -> np.ndarray:
    return np.einsum("...nd,de->...ne", x, np.array([[0.1, -0.7], [1 / 3, 0.2]]))


def cotangent(x: np.ndarray) -> np.ndarray:
    return 1 / np.tanh(x)


def log_logistic(x: np.ndarray) -> np.ndarray:
    return np.log(1 / (1 + np.exp(-x)))


def summed(x: np.ndarray) -> np.ndarray:
    return np.exp(x @ np.swapaxes(x, -1, -2)) @ x


def summed_with_biases(x: np.ndarray) -> np.ndarray:
    """Without a denominator: what depends on the token that asks does not cancel."""
    places = np.arange(x.shape[-2])
    gaps = ((x[..., :, None, :] - x[..., None, :, :]) ** 2).sum(axis=-1)
    weights = np.exp(-gaps - np.abs(places[:, None] - places) / 4)
    return (weights * np.tri(x.shape[-2])) @ (x - 0.5)


def divided_by_more(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x @ np.swapaxes(x, -1, -2) / 2)
    return (weights @ x) / (1 + weights.sum(axis=-1, keepdims=True))


def masked_by_a_number(x: np.ndarray) -> np.ndarray:
    scores = x @ np.swapaxes(x, -1, -2) + np.where(np.tri(x.shape[-2]) > 0, 0, -1e9)
    weights = np.exp(scores)
    return weights / weights.sum(axis=-1, keepdims=True) @ x


def replaced_by_a_number(x: np.ndarray) -> np.ndarray:
    """What depends on the token that asks does not cancel beside a number."""
    gaps = ((x[..., :, None, :] - x[..., None, :, :]) ** 2).sum(axis=-1)
    scores = np.where(np.tri(x.shape[-2]) > 0, -gaps, -1e9)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ x


def masked_by_infinity(x: np.ndarray) -> np.ndarray:
    """A pre-LN causal head: -inf added, and put in the place of scores."""
    n = x.shape[-2]
    z = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1)
    scores = z @ np.swapaxes(z, -1, -2) + np.triu(np.full((n, n), -np.inf), 1)
    scores = np.where(np.tri(n) > 0, scores / np.sqrt(2), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ x


def multiplied_by_masks(x: np.ndarray) -> np.ndarray:
    y = x - 0.5
    above = (y > 0).astype(float)
    slopes = np.where(y > 0, 1, 0.125) * y + np.sign(y) * y + y**2 * (y > 0)
    return slopes + above * y + (1 - above) * (np.exp(y) - 1)


def by_numpy(x: np.ndarray) -> np.ndarray:
    """What people call by one name."""
    units = x / (np.linalg.norm(x, axis=-1, keepdims=True) ** 2 + 1)
    before = np.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    spread = np.ptp(x, axis=-2, keepdims=True) + np.median(x, axis=-2, keepdims=True)
    broken = np.interp(x, [0.25, 0.5, 0.75], [0, 0.5, 0.125])
    means = np.average(x, axis=-2, weights=[1, 2, 5], keepdims=True)
    return units + before + spread + broken + means + np.polyval([1, -2, 0.5], x)


def cosines(x: np.ndarray) -> np.ndarray:
    """Cyclic shifts of three tokens: written as 3 mean - x - the other, they lost signs."""
    units = x / np.sqrt((x**2).sum(axis=-1, keepdims=True))
    return units @ np.swapaxes(units, -1, -2) @ x


CASES: list[tuple[Function, int, int, float]] = [
    (dot_attention, 4, 4, 1e-9),
    (soft_attention, 3, 2, 1e-6),
    (soft_attention, 3, 2, 1e-10),
    (normalise, 3, 4, 1e-6),
    (product, 3, 3, 1e-8),
    (mlp, 3, 2, 1e-9),
    (ordered, 5, 1, 1e-9),
    (stable_softmax, 2, 3, 1e-5),
    (causal, 4, 2, 1e-13),
    (causal_sum, 4, 2, 1e-6),
    (whole_weights, 4, 2, 1e-12),
    (two_conditions, 3, 2, 1e-12),
    (maxima_of_sums, 3, 2, 1e-12),
    (pieces, 3, 2, 1e-3),
    (gated, 3, 2, 1e-6),
    (looped, 4, 2, 1e-9),
    (clipped, 3, 2, 1e-9),
    (named, 3, 2, 1e-9),
    (transformer_block, 3, 4, 1e-2),
    (masked_by_a_number, 3, 2, 1e-12),
    (replaced_by_a_number, 3, 2, 1e-6),
    (summed, 4, 2, 1e-10),
    (summed_with_biases, 3, 2, 1e-5),
    (divided_by_more, 3, 1, 1e-4),
    (masked_by_infinity, 3, 2, 1e-6),
    (multiplied_by_masks, 2, 1, 1e-6),
    (by_numpy, 3, 2, 1e-6),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[3]:g}")
def test_programs_are_proved_and_hold(case: tuple[Function, int, int, float]) -> None:
    function, n, d, tol = case
    target = ef.Target(function, n, d)
    built = ef.construct(target, tol=tol, method="compile")
    said = built.certificate
    assert said.verdict is ef.Verdict.PROVED
    assert said.p is None
    if function is normalise:  # one accuracy for all, with steady knots, took 30
        assert built.network.architecture.num_prefix <= 15
    assert said.float64_bound is not None
    assert target.expression is not None
    for x in random_points(400, n, d, 400):
        gap = np.abs(
            built.network(x, executor="reference") - extended(target.expression, x)
        )
        assert float(gap.max()) <= float(said.float64_bound.value)


def test_gadgets_are_as_coarse_as_the_bound_allows() -> None:
    """One accuracy for all, and knots that magnify nothing, took 20 tokens."""
    tol, target = 1e-4, ef.Target(normalise, 3, 4)
    built = ef.construct(target, tol=tol, method="compile")
    assert built.network.architecture.num_prefix <= 11
    assert built.certificate.verdict is ef.Verdict.PROVED
    plain = followed(lift(target), target, Precision(Fraction(tol)), Fraction(1))
    wanted = max(plain.errors)  # a bound that it meets: then coarser is not worse
    coarse = cheaper(plain, target, wanted)
    assert max(coarse.errors) <= wanted
    assert coarse.count().parameters <= plain.count().parameters


def test_precision_by_kinds() -> None:
    fine = Precision(Fraction(1, 100))
    coarse = fine.coarser(("root", "square"), 4).coarser(("root",), 2)
    assert (coarse.of("root"), coarse.of("square")) == (Fraction(2, 25), Fraction(1, 25))
    assert coarse.of("product") == fine.of("product") == Fraction(1, 100)
    assert coarse.largest == Fraction(2, 25)
    program = lift(ef.Target(normalise, 3, 4))
    assert kinds_of(program)[0] == ("product", "square", "root")
    assert kinds_of(lift(ef.Target(mlp, 3, 2))) == [("function",)]


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery_is_compiled(name: str) -> None:
    target = getattr(gallery, name)(3, 2)
    built = ef.construct(target, tol=1e-6, method="compile")
    assert built.certificate.verdict is ef.Verdict.PROVED


@pytest.mark.parametrize(
    "function", [cotangent, log_logistic], ids=lambda function: function.__name__
)
def test_bounded_functions_of_a_small_interval_stay_away_from_0(function: Function) -> None:
    target = ef.Target(function, 1, 1, domain=[(0.5, 1)])
    built = ef.construct(target, tol=1e-4, method="compile")
    assert built.certificate.verdict is ef.Verdict.PROVED


def test_a_sum_without_a_denominator_is_one_head() -> None:
    """Pair by pair it took 17,002 parameters."""
    built = ef.construct(ef.Target(summed, 4, 2), tol=1e-4, method="compile")
    assert built.plan.count().parameters <= 120
    with pytest.raises(ToleranceError, match="needs a null token"):
        ef.construct(ef.Target(summed, 4, 2, domain=[(-9, 9)]), tol=1e-4, method="compile")


def test_finite_p_follows_from_the_supremum() -> None:
    target = ef.Target(soft_attention, 3, 1, domain=[(-1, 1)])
    built = ef.construct(target, tol=1e-4, p=2, method="compile")
    sup = ef.construct(target, tol=1e-4, p=math.inf, method="compile")
    assert built.certificate.verdict is ef.Verdict.PROVED
    assert built.certificate.p == 2
    assert built.certificate.bound is not None
    assert sup.certificate.bound is not None
    # (n d vol)^(1/p) = (3 * 8)^(1/2), for the network of this tolerance.
    again = built.certify(eps=Fraction(1, 10**4)).bound
    assert again == built.certificate.bound
    assert built.certificate.bound.value > sup.certificate.bound.value / 10**4


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> tuple[ef.Built, Path]:
    built = ef.construct(ef.Target(soft_attention, 3, 2), tol=1e-6, method="compile")
    place = tmp_path_factory.mktemp("attention")
    built.save(place)
    return built, place


EXECUTED: list[tuple[Function, int, int, float]] = [
    (soft_attention, 3, 2, 1e-6), (ordered, 3, 2, 1e-6), (mlp, 3, 2, 1e-9),
    (product, 2, 3, 1e-6),
]  # fmt: skip


@pytest.mark.parametrize("case", EXECUTED, ids=lambda case: case[0].__name__)
def test_executors_agree_within_the_proved_rounding(
    case: tuple[Function, int, int, float], tmp_path: Path
) -> None:
    """Each is within r of the network in real arithmetic, and within the bound of f."""
    torch = pytest.importorskip("torch")
    onnxruntime = pytest.importorskip("onnxruntime")
    function, n, d, tol = case
    built = ef.construct(ef.Target(function, n, d), tol=tol, method="compile")
    network, x = built.network, np.random.default_rng(1).random((50, n, d))
    runs = {name: network(x, executor=name) for name in ("reference", "literal")}
    if function is mlp:  # its prefix tokens hear nothing
        runs["prefix"] = network(x, executor="prefix")
    with torch.no_grad():
        runs["torch"] = network.to_torch()(torch.from_numpy(x)).numpy()
    network.to_onnx(tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    (runs["onnx"],) = session.run(None, {session.get_inputs()[0].name: x})
    found = read_program(as_stored(network), built.target.domain, Untold())
    r = float(max(value.r for value in found.results))
    assert built.certificate.float64_bound is not None
    assert built.target.expression is not None
    bound = float(built.certificate.float64_bound.value)
    wanted = extended(built.target.expression, x)
    assert 0 < r <= bound
    for name, run in runs.items():
        assert float(np.abs(run - wanted).max()) <= bound, name
        assert np.abs(run - runs["reference"]).max() <= 2 * r, name


def test_another_process_verifies_the_files(attention: tuple[ef.Built, Path]) -> None:
    _, place = attention
    code = (
        "import sys, everyformer as ef\n"
        "found = ef.verify(sys.argv[1])\n"
        "loaded = ef.load(sys.argv[1] + '/network.safetensors')\n"
        "sys.stdout.write(f'{found.verdict.name} {len(loaded.program.listing)}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("PROVED "), done.stderr
    assert int(done.stdout.split()[1]) > 5


def test_the_domain_is_part_of_the_network(attention: tuple[ef.Built, Path]) -> None:
    _, place = attention
    loaded = ef.load(place / "network.safetensors")
    with pytest.raises(DomainError, match="proved on its domain alone"):
        loaded(np.full((1, 3, 2), 1.5))


def test_it_is_the_cheapest_where_it_is() -> None:
    target = gallery.soft_attention(2, 1)
    chosen = ef.construct(target, tol=0.01, method="auto")
    assert chosen.plan.label == "compiled program"
    assert chosen.cost.parameters < 100


def jump(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0.5, 1.0, 0.0)


REFUSALS: list[tuple[Function, dict[str, object], type[Exception], str]] = [
    (lambda x: 1 / x, {"tol": 1e-3}, TargetError, "may be 0 on the domain"),
    (lambda x: np.log(x), {"tol": 1e-3}, TargetError, "logarithm"),
    (lambda x: np.sqrt(x - x**2), {"tol": 1e-3}, TargetError, "root"),
    (jump, {"tol": 1e-3}, TargetError, "not continuous"),
    (soft_attention, {"grid": 4}, GridError, r"has no grid\. Give tol\."),
    (soft_attention, {"tol": 1e-300}, ToleranceError, r"float64 rounds by 3\.\de-14\."),
    (
        lambda x: np.exp(4 * x),
        {"tol": 1e-14},
        ToleranceError,
        r"more than tol = 1e-14: exp on \[0, 4\] in block 0 multiplies errors by 5\.5e\+01",
    ),
    (np.argsort, {"tol": 1e-3}, ExpressionError, r"needs argsort as a program.*argsort"),
    (summed, {"tol": 1e-3, "max_memory": 99}, ToleranceError, "Take fewer tokens"),
    (soft_attention, {"tol": 1e-3, "p": 0.5}, ToleranceError, r"or p=math\.inf\."),
    (soft_attention, {"tol": -1}, ToleranceError, "positive"),
    (
        lambda x: ordered(ordered(x)),
        {"tol": 1e-3},
        ToleranceError,
        "not seen to be the same",
    ),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case[3][:12])
def test_what_cannot_be_compiled_is_refused(
    case: tuple[Function, dict[str, object], type[Exception], str],
) -> None:
    function, arguments, kind, text = case
    with pytest.raises(kind, match=text):
        ef.construct(ef.Target(function, 3, 2), method="compile", **arguments)  # pyright: ignore[reportArgumentType]


def test_a_domain_beyond_what_is_followed_is_refused() -> None:
    """It said that a file was damaged."""
    far = ef.Target(lambda x: x / 2, 2, 1, domain=[(2.0**999, 2.0**1000)])
    with pytest.raises(DomainError, match=r"at most 2\^200 = 1\.6e\+60.*Scale the input"):
        ef.construct(far, tol=1e-3, method="compile")
    near = ef.Target(lambda x: x * 2.0**-199, 2, 1, domain=[(-(2.0**199), 2.0**199)])
    assert (
        ef.construct(near, tol=1e-3, method="compile").certificate.verdict.name == "PROVED"
    )


def test_quotients_of_gathered_norms_are_compiled() -> None:
    """It said that x^2 + y^2 may be 0 where x and y are at least .25."""
    target = ef.Target(cosines, 3, 2, domain=[(0.25, 1)] * 2)
    built = ef.construct(target, tol=1e-3, method="compile")
    assert built.certificate.verdict is ef.Verdict.PROVED


def over_the_deviation(x: np.ndarray) -> np.ndarray:
    return x / (x.std(-1, keepdims=True) + 0.25)


@pytest.mark.slow
def test_roots_under_quotients_are_compiled() -> None:
    """Finer gadgets are worse there: the bound is found between the attempts."""
    target = ef.Target(over_the_deviation, 2, 2)
    built = ef.construct(target, tol=0.1, method="compile")
    assert built.certificate.verdict is ef.Verdict.PROVED


def test_roots_under_quotients_are_told() -> None:
    """It said that a number in [.25, ..] which is off by 2 may be 0."""
    target = ef.Target(over_the_deviation, 2, 2)
    with pytest.raises(ToleranceError, match=r"in block \d is infinitely steep at 0"):
        ef.construct(target, tol=1e-9, method="compile")


def test_small_numbers_under_a_root_are_compiled() -> None:
    """Room for errors is at most half of the way to 0; 5e-7 beside 1 was refused as 0."""
    target = ef.Target(lambda x: 1 / np.sqrt(x**2 + 5e-7), 1, 1)
    built = ef.construct(target, tol=1, method="compile")
    assert built.certificate.verdict is ef.Verdict.PROVED


def test_what_is_proved_at_best_is_what_a_coarser_tolerance_proves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It said 2.4e-03: knots that float64 has no room for miss by more than fewer do."""
    module = importlib.import_module("everyformer.construct.compile.plan")
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    target = ef.Target(np.sqrt, 1, 1, name="root")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ToleranceError, match=r"proves (\S+) at best") as refused:
        ef.construct(target, tol=1e-8, method="compile")
    assert "pow(1/2) on [0, 1] in block 0 is infinitely steep at 0" in str(refused.value)
    found = re.search(r"proves (\S+) at best", str(refused.value))
    assert found is not None
    assert float(found[1]) <= 1e-6


def test_a_declared_function_has_no_program() -> None:
    target = ef.Target(lambda x: np.arctan(x), 2, 1, lipschitz=1)
    with pytest.raises(ExpressionError, match=r"needs .* as a program"):
        ef.construct(target, tol=1e-3, method="compile")
