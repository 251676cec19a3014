"""Networks enclosed on boxes, and claims refuted by them: against exact and plain runs."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify import refute as refuting
from everyformer.certify.from_files import NETWORK_FILE
from everyformer.certify.network_on_box import NetworkOnBoxes
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.refute import Apart, boxes_apart, inner_box, refute
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import RegisterWeights, StageWeights, Weights
from everyformer.construct.certificates import as_stored
from everyformer.errors import CertificateError
from everyformer.model.forward import run_stages
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.targets.box import Grid
from everyformer.verdict import Verdict

MUCH = Fraction(10**9)
"""More than any distance: all boxes are looked at."""


def sort_by(**settings: Any) -> ef.Built:
    return ef.construct(ef.targets.sort(seq_len=2), **settings)


@pytest.fixture(scope="module")
def shifts() -> ef.Built:
    return sort_by(grid=4, method="selective-shift")


@pytest.mark.parametrize("seed", range(12))
def test_softmax_networks_are_enclosed(seed: int) -> None:
    """Random weights, gains, masks, biases and prefix tokens; boxes of all sizes."""
    rng = np.random.default_rng(seed)
    n, w, P = 3, 2, (2 if seed % 3 == 2 else 0)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    tokens = n + P
    mask = (rng.random((2, tokens, tokens)) < 0.5) | np.eye(tokens, dtype=bool)
    attention = AttentionStack(
        draw(2, 2, 1, w), draw(2, 2, 1), draw(2, 2, 1, w), draw(2, 2, 1, w),
        draw(2, 2, w, 1),
        b_V=draw(2, 2, 1) if seed % 2 else None,
        gain=draw(2, 2, 2 * tokens - 1) if seed % 2 else None,
        mask=mask if seed % 4 == 0 else None,
    )  # fmt: skip
    hidden = FeedForwardStack(draw(2, 5, w), draw(2, 5), draw(2, w, 5), draw(2, w))
    stages = (Stage("a", "test", attention), Stage("f", "test", None, hidden))
    around = RegisterWeights(draw(w, 1), draw(n, w), draw(1, w), draw(P, w) if P else None)
    parts = [
        StageWeights("s", half, {k: v for k, v in vars(stack).items() if v is not None})  # type: ignore[arg-type]
        for half, stack in (("attention", attention), ("feed_forward", hidden))
    ]
    weights = Weights(n, 1, True, None, tuple(parts), False, "", around)
    network = NetworkOnBoxes(weights)
    for width in (0.0, 1e-6, 0.01, 0.3):
        low = rng.normal(size=(n, 1))
        high = low + width
        try:
            found = network.enclose(low, high)
        except Undecided:
            assert width > 0.1  # exp has no bound there
            continue
        x = low + (high - low) * rng.random((50, n, 1))
        x[0], x[1] = low, high
        state = x @ around.W_in.T + around.start
        if around.prefix is not None:
            before = np.broadcast_to(around.prefix, (50, P, w))
            state = np.concatenate([before, state], axis=1)
        for _, after in run_stages(stages, state, "softmax"):
            state = after
        result = state[:, P:] @ around.W_out.T
        slack = 1e-9 * (1 + np.abs(result).max())
        assert (result >= found[0] - slack).all()
        assert (result <= found[1] + slack).all()
        if width <= 1e-6:
            assert (found[1] - found[0] <= 1e6 * width + slack).all()


def test_relu_and_exp_reach_their_ends() -> None:
    """min(x, 0) on [-1, 1] reaches -1; 1/(1 + exp(s)) on [0, 6] reaches 1/2 and 0.0025."""
    one = np.ones((1, 1, 1))
    bent = {"W_1": one, "b_1": np.zeros((1, 1)), "W_2": -one, "b_2": np.zeros((1, 1))}
    network = Weights(
        1, 1, True, None, (StageWeights("f", "feed_forward", bent),), False, ""
    )
    low, high = NetworkOnBoxes(network).enclose(np.full((1, 1), -1.0), np.ones((1, 1)))
    assert -2 <= low <= -1 < 0 <= high <= 1.01
    score, value = np.array([[[[1.0, 0.0]]]]), np.array([[[[0.0, 1.0]]]])
    head = {"W_Q": 0 * score, "b_Q": -np.ones((1, 1, 1)), "W_K": score}
    head |= {"W_V": value, "W_O": value.swapaxes(2, 3)}
    stage = StageWeights("a", "attention", head)
    selecting = NetworkOnBoxes(Weights(2, 2, True, None, (stage,), False, ""))
    x = np.array([[0.0, 0.0], [0.0, 1.0]])
    low, high = selecting.enclose(x, x + np.array([[6.0, 0.0], [0.0, 0.0]]))
    assert low[0, 1] <= 1 / (1 + np.exp(6)) < 0.5 <= high[0, 1]


@pytest.mark.parametrize("mean", [False, True])
def test_hardmax_networks_are_enclosed(mean: bool) -> None:
    """The modified network of the proof, in rationals: every box that is decided."""
    method = ef.SelectiveShifts(softened=False)
    built = ef.construct(ef.targets.sort(seq_len=2), grid=4, method=method)
    network = built.network
    if mean:
        network = _means(network)
    grid, boxes = Grid(4, 2, built.target.domain), NetworkOnBoxes(as_stored(network))
    decided, rng = 0, np.random.default_rng(0)
    for row in grid.all_sequences():
        low, high = inner_box(grid, row[None])
        try:
            found = boxes.enclose(low, high)
        except Undecided:
            continue
        decided += 1
        shares = [Fraction(v).limit_denominator(1000) for v in rng.random(2)]
        ends = [[Fraction(v) for v in end.flat] for end in (low, high)]
        x = [a + (b - a) * t for a, b, t in zip(*ends, shares, strict=True)]
        exact = network(np.array(x, dtype=object).reshape(2, 1), executor="exact")
        for j in range(2):
            assert Fraction(float(found[0][j, 0])) <= exact[j, 0]
            assert exact[j, 0] <= Fraction(float(found[1][j, 0]))
    assert decided >= 6


def _means(network: ef.Network) -> ef.Network:
    from everyformer.construct.ablation import with_means

    return with_means(network, "selective shifts")


BUILT: dict[str, Callable[[], ef.Built]] = {
    "Theorem 3": lambda: sort_by(grid=4, method="selective-shift"),
    "Theorem 2": lambda: ef.construct(ef.targets.centring(2, 1), grid=4),
    "averaging": lambda: sort_by(grid=4, method="averaging"),
    "partition": lambda: ef.construct(
        ef.targets.soft_attention(2, 1), tol=0.2, method="partition"
    ),
    "compile": lambda: sort_by(tol=0.1, method="compile"),
    "sparse": lambda: ef.construct(
        ef.targets.reverse(3, 1), grid=2, method=ef.SparseShifts(ef.patterns.star(3))
    ),
}


@pytest.mark.parametrize("name", BUILT)
def test_an_unchanged_network_is_never_refuted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as certified, nor by all its boxes together."""
    built = BUILT[name]()
    built.save(tmp_path)
    proved = ef.verify(tmp_path)
    assert proved.verdict is Verdict.PROVED
    assert refute(tmp_path, proved) is proved
    monkeypatch.setattr(refuting, "BOXES", 64)
    unknown = replace(proved, verdict=Verdict.UNKNOWN)
    assert refute(tmp_path, unknown) is unknown
    target, bound = built.target, built.certificate.bound
    assert target.expression is not None
    assert bound is not None
    grid = Grid(built.certificate.grid or 4, target.seq_len, target.domain)
    cells = Cells.of(grid, symmetric=False)
    p = built.certificate.p
    found = boxes_apart(as_stored(built.network), cells, target.expression, p, MUCH)
    if found is not None:
        assert float(found.lower) ** (1 / float(p or 1)) <= bound.value


def test_random_changes_are_never_refuted_falsely(shifts: ef.Built) -> None:
    """The lower bound is below the distance at random points, whatever was changed."""
    target, network = shifts.target, shifts.network
    assert target.expression is not None
    grid = Grid(4, 2, target.domain)
    cells = Cells.of(grid, symmetric=False)
    allowed = shifts.certificate.bound
    assert allowed is not None
    rng, apart = np.random.default_rng(0), 0
    x = rng.random((1024, 2, 1))
    for _ in range(16):
        at = int(rng.integers(len(network.stages)))
        stage, size = network.stages[at], rng.choice([1e-12, 1e-3, 2.0])
        half = "attention" if stage.attention is not None else "feed_forward"
        stack = getattr(stage, half)
        name = rng.choice(["W_Q", "W_V", "W_O"] if half == "attention" else ["b_1", "W_2"])
        array = getattr(stack, name).copy()
        layer = int(rng.integers(len(array)))
        array[layer] += size * rng.normal(size=array[layer].shape)
        other = replace(stage, **{half: replace(stack, **{name: array})})
        stages = (*network.stages[:at], other, *network.stages[at + 1 :])
        changed = replace(network, stages=stages)
        found = boxes_apart(as_stored(changed), cells, target.expression, Fraction(2), MUCH)
        gap = changed(x, executor="reference") - target(x)
        distance = float(np.sqrt((gap**2).sum(axis=(1, 2)).mean()))
        lower = 0.0 if found is None else float(found.lower) ** 0.5
        assert lower <= 1.1 * distance
        apart += lower > allowed.value
    assert apart >= 2


def test_the_lower_bound_is_the_integral_over_the_boxes(shifts: ef.Built) -> None:
    """g is 3/8 more than f at the centres: gap 3/8 less half a box, exactly."""
    network, target = shifts.network, shifts.target
    assert target.expression is not None
    cells = Cells.of(Grid(4, 2, target.domain), symmetric=False)
    last = network.stages[-1].feed_forward
    assert last is not None
    b_2 = last.b_2.copy()
    b_2[-1] += 0.375
    moved = replace(last, b_2=b_2)
    stages = (*network.stages[:-1], replace(network.stages[-1], feed_forward=moved))
    weights = as_stored(replace(network, stages=stages))
    found = boxes_apart(weights, cells, target.expression, Fraction(2), MUCH)
    assert found is not None
    half = Fraction(15, 16) / 8
    expected = 16 * (2 * half) ** 2 * 2 * (Fraction(3, 8) - half) ** 2
    assert float(found.lower) == pytest.approx(float(expected), rel=0.05)
    assert found.lower <= expected
    assert (found.boxes, found.looked_at) == (16, 16)


def test_a_box_is_told_without_signs_of_zeros() -> None:
    zero, one = np.zeros((1, 1)), np.ones((1, 1))
    told = Apart(Fraction(1), 1, 2, -zero, one, (zero, -zero), (one, one)).describe()
    assert told.endswith("for x in [0, 1], where it is in [0, 0] and f in [1, 1]")


def test_a_declared_function_is_refuted_under_its_declaration(tmp_path: Path) -> None:
    def untraceable(x: np.ndarray) -> np.ndarray:
        flat = [sorted(float(v) for v in row) for row in x.reshape(-1, 2)]
        return np.array(flat).reshape(x.shape)

    target = ef.Target(untraceable, 2, 1, lipschitz=1, name="sorted")
    ef.construct(target, grid=8, method="selective-shift").save(tmp_path)
    from everyformer.construct.ablation import ablate

    found = ablate(tmp_path, "selective shifts", by="mean").verification
    assert found.verdict is Verdict.REFUTED
    assert "is at least 0." in found.reasons[0]
    assert "CONDITIONAL" in found.headline


def test_weights_exchanged_after_the_verdict_refute_nothing(
    shifts: ef.Built, tmp_path: Path
) -> None:
    """REFUTED is about the claim, so about the weights that the certificate names."""
    shifts.save(tmp_path)
    unknown = replace(ef.verify(tmp_path), verdict=Verdict.UNKNOWN)
    target = ef.Target(lambda x: 1 - x, 2, 1)
    ef.construct(target, grid=4, method="selective-shift").save(tmp_path / "other")
    (tmp_path / "other" / NETWORK_FILE).replace(tmp_path / NETWORK_FILE)
    with pytest.raises(CertificateError, match=r"network\.safetensors has sha256"):
        refute(tmp_path, unknown)
