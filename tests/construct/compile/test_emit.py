"""Programs and their networks: equal numbers, and arrays of the claimed form."""

import json
from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.construct.compile.interpret import interpret

from everyformer.construct.compile import program as ir
from everyformer.construct.compile.lowering.emit import Compiled, emit
from everyformer.construct.compile.ranges import Ranges, image
from everyformer.model.cost import count
from everyformer.model.forward import run_stages
from everyformer.targets.box import Box

F = Fraction
Maker = Callable[[int, int, Box], ir.Program]


def box(d: int, low: float = 0.0, high: float = 1.0) -> Box:
    return Box((low,) * d, (high,) * d)


def points(program: ir.Program, count: int = 40) -> np.ndarray:
    """Random points, corners, and sequences of tokens that are close together."""
    rng = np.random.default_rng(7)
    n, d = program.seq_len, len(program.box.lows)
    u = rng.random((count, n, d))
    u[: count // 4] = u[: count // 4].round()
    u[count // 4 : count // 2] = u[count // 4 : count // 2, :1] + 0.01 * (
        u[count // 4 : count // 2] - u[count // 4 : count // 2, :1]
    )
    low, high = np.array(program.box.lows), np.array(program.box.highs)
    return low + (high - low) * u


def reference(made: Compiled, x: np.ndarray) -> np.ndarray:
    """The network in plain numpy; the fast executor would compile kernels for each."""
    return made.network(x, executor="reference")


def check(program: ir.Program, accuracy: float = 1e-6, within: float = 1e-12) -> Compiled:
    """The network computes the program, and has the claimed form."""
    made = emit(program, accuracy)
    x = points(program)
    np.testing.assert_allclose(
        reference(made, x), interpret(program, x), rtol=0, atol=within
    )
    check_form(made, x)
    again = emit(program, accuracy)
    for (name, one), (_, two) in zip(
        made.network.arrays(), again.network.arrays(), strict=True
    ):
        assert one.tobytes() == two.tobytes(), name
    assert made.claims == again.claims
    return made


def check_form(made: Compiled, x: np.ndarray) -> None:
    """One claim for each head and unit, one entry a column, empty registers."""
    claims = json.loads(json.dumps(made.claims))
    assert claims == made.claims
    network = made.network
    assert network.registers is not None
    P = network.registers.num_prefix
    assert len(claims["blocks"]) == len(network.stages)
    states = [network.registers.read_in(x)]
    states += [state for _, state in run_stages(network.stages, states[0], "softmax")]
    fixed = np.any(network.registers.start != 0, axis=0)
    if network.registers.prefix is not None:
        fixed = fixed | np.any(network.registers.prefix != 0, axis=0)
    for stage, block, state in zip(network.stages, claims["blocks"], states, strict=False):
        written: list[int] = []
        if stage.attention is not None:
            W_O = stage.attention.W_O[0]
            assert len(block["heads"]) == len(W_O)
            for head, claim in zip(W_O, block["heads"], strict=True):
                columns = np.count_nonzero(head, axis=0)
                assert (columns <= 1).all()
                assert columns.any()
                used = np.flatnonzero(columns)
                written += [int(np.flatnonzero(head[:, c])[0]) for c in used]
                if claim["step"] == "unary":
                    assert [c is not None for c in claim["columns"]] == list(columns > 0)
                if claim["step"] == "mix":
                    A = [[F(a) for a in row] for row in claim["matrix"]]
                    assert all(a >= 0 for row in A for a in row)
                    assert all(sum(row) <= 1 for row in A)
            assert not state[..., P:, written].any()
            assert not np.asarray(fixed)[written].any()
            assert len(set(written)) == len(written)
        else:
            assert not block["heads"]
        if stage.feed_forward is None:
            assert not block["units"]
            continue
        W_2 = stage.feed_forward.W_2[0]
        assert (np.count_nonzero(W_2, axis=0) == bool(block["units"])).all()
        seen: list[int] = []
        targets: list[int] = []
        for claim in block["units"]:
            terms = claim.get("terms", [claim])
            units = [unit for term in terms for unit in term["units"]]
            seen += units
            targets.append(claim["register"])
            assert all(W_2[claim["register"], u] for u in units)
            if claim["step"] == "sum":
                assert claim["register"] not in written
                assert not state[..., claim["register"]].any()
        assert sorted(seen) == np.flatnonzero(W_2.any(axis=0)).tolist()
        assert len(set(targets)) == len(targets)


def inputs(d: int) -> list[ir.Form]:
    return [ir.Form.of(ir.Input(i)) for i in range(d)]


def centring(n: int, d: int, b: Box) -> ir.Program:
    return ir.Program(n, b, tuple(x - ir.Form.of(ir.Mean(x)) for x in inputs(d)))


def shift(n: int, d: int, b: Box) -> ir.Program:
    tau = tuple((j + 1) % n for j in range(n))
    return ir.Program(n, b, tuple(ir.Form.of(ir.Gather(x, tau)) for x in inputs(d)))


def prefix_mean(n: int, d: int, b: Box) -> ir.Program:
    A = tuple(tuple(F(1, j + 1) if k <= j else F(0) for k in range(n)) for j in range(n))
    return ir.Program(n, b, tuple(ir.Form.of(ir.Mix(x, A)) for x in inputs(d)))


def cumsum(n: int, d: int, b: Box) -> ir.Program:
    A = tuple(tuple(F(int(k <= j)) for k in range(n)) for j in range(n))
    return ir.Program(n, b, tuple(ir.Form.of(ir.Mix(x, A)) for x in inputs(d)))


def max_minus_x(n: int, d: int, b: Box) -> ir.Program:
    outputs = []
    for x in inputs(d):
        top, hop = x, 1
        while hop < n:
            tau = tuple((j + hop) % n for j in range(n))
            top = ir.Form.of(ir.Maximum(top, ir.Form.of(ir.Gather(top, tau))))
            hop *= 2
        outputs.append(top - x)
    return ir.Program(n, b, tuple(outputs))


def sort(n: int, d: int, b: Box) -> ir.Program:
    outputs = []
    for x in inputs(d):
        for round_ in range(n):
            tau, low = list(range(n)), [True] * n
            for j in range(round_ % 2, n - 1, 2):
                tau[j], tau[j + 1], low[j + 1] = j + 1, j, False
            x = ir.Form.of(ir.Exchange(x, tuple(tau), tuple(low)))
        outputs.append(x)
    return ir.Program(n, b, tuple(outputs))


def bits_and_pieces(n: int, d: int, b: Box) -> ir.Program:
    """Every exact step, old values that are read again, offsets, gates, constants."""
    xs = inputs(d)
    x, y = xs[0], xs[-1]
    place = ir.Form.of(ir.Constant(tuple(F(j, 3) for j in range(n))))
    top = ir.Form.of(ir.Maximum(x + place, y * 2 - ir.Form.constant(F(1, 3))))
    low = ir.Form.of(ir.Minimum(top, x))
    both = ir.Form.of(ir.Minimum(ir.Form.of(ir.Maximum(x, ir.Form.constant(F(1, 4)))), y))
    size = ir.Form.of(ir.Absolute(x - y + place))
    part = ir.Form.of(ir.Relu(top - low * 3))
    tau = tuple(n - 1 - j for j in range(n))
    scaled = ir.Form.of(ir.Scale(size + top, tuple(F(j % 3 - 1, 7) for j in range(n))))
    A = tuple(tuple(F((j * k) % 3 - 1, 5) for k in range(n)) for j in range(n))
    mixed = ir.Form.of(ir.Mix(size + ir.Form.constant(2), A))
    turned = ir.Form.of(ir.Gather(part + ir.Form.constant(1), tau))
    scores = ir.Attend((x * 3, top), (y, mixed), turned + x)
    answers = [ir.Form.of(scores) + top, both + low, mixed + turned, scaled - part]
    answers += [ir.Form.of(ir.Mean(answers[k % 4])) + place for k in range(4)]
    return ir.Program(n, b, tuple(answers[:d]))


EXACT = [centring, shift, prefix_mean, cumsum, max_minus_x, sort, bits_and_pieces]


@pytest.mark.parametrize("make", EXACT)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 2), (5, 3), (8, 8)])
def test_exact_programs_run_as_they_read(make: Maker, n: int, d: int) -> None:
    check(make(n, d, box(d)))


@pytest.mark.parametrize("make", EXACT)
@pytest.mark.parametrize("ends", [(-2.0, 3.0), (100.0, 101.0)])
def test_exact_programs_on_other_boxes(make: Maker, ends: tuple[float, float]) -> None:
    check(make(4, 4, box(4, *ends)), within=1e-9)


def test_long_sequences() -> None:
    check(max_minus_x(64, 2, box(2)))
    made = check(sort(64, 1, box(1)))
    assert made.network.blocks == 64


SIZES = [
    (centring, 1, 102),
    (shift, 1, 142),
    (prefix_mean, 1, 633),
    (max_minus_x, 3, 849),
    (sort, 8, 2524),
]


@pytest.mark.parametrize(("make", "blocks", "parameters"), SIZES)
def test_sizes_are_at_most_those_of_the_design(
    make: Maker, blocks: int, parameters: int
) -> None:
    cost = count(emit(make(8, 2, box(2)), 1e-6).network)
    assert (cost.blocks, cost.parameters <= parameters) == (blocks, True), cost


def product(n: int, d: int, b: Box) -> ir.Program:
    xs = inputs(d)
    first = ir.Form.of(ir.Product(xs[0], xs[1])) + xs[-1]
    return ir.Program(n, b, (first, *xs[1:]))


def soft_attention(n: int, d: int, b: Box) -> ir.Program:
    """softmax_k(-|x_j - x_k|^2) x_k."""
    xs = inputs(d)
    square = ir.Function("pow", F(2))
    norm = ir.Form({})
    for x in xs:
        norm = norm + ir.Form.of(ir.Unary(x, square))
    queries = (*(2 * x for x in xs), ir.Form.constant(-1))
    keys = (*xs, norm)
    return ir.Program(n, b, tuple(ir.Form.of(ir.Attend(queries, keys, x)) for x in xs))


def normalise(n: int, d: int, b: Box) -> ir.Program:
    xs = inputs(d)
    mean = ir.Form({})
    for x in xs:
        mean = mean + x * F(1, d)
    group = ir.Normalised(tuple(x - mean for x in xs), F(1, 128))
    return ir.Program(n, b, tuple(ir.Form.of(ir.Normalise(group, i)) for i in range(d)))


def tanh_mlp(n: int, d: int, b: Box) -> ir.Program:
    xs = inputs(d)
    total = ir.Form({})
    for k in range(8):
        form = ir.Form.constant(F(k - 4, 4))
        for i, x in enumerate(xs):
            form = form + x * F((k * i) % 5 - 2, 4)
        total = total + ir.Form.of(ir.Unary(form, ir.Function("tanh"))) * F(k - 3, 8)
    return ir.Program(
        n, b, tuple(total * (i + 1) + ir.Form.of(ir.Mean(x)) for i, x in enumerate(xs))
    )


SMOOTH = [product, soft_attention, normalise, tanh_mlp]


@pytest.mark.parametrize("make", SMOOTH)
@pytest.mark.parametrize(("n", "d", "accuracy"), [(1, 2, 1e-4), (5, 3, 1e-6), (8, 8, 1e-9)])
def test_smooth_programs(make: Maker, n: int, d: int, accuracy: float) -> None:
    check(make(n, d, box(d)), accuracy, within=8 * accuracy)


SMOOTH_SIZES = [
    (product, 3, 1, 380),
    (soft_attention, 1, 2, 320),
    (normalise, 4, 3, 3752),
    (tanh_mlp, 4, 1, 3438),
]


@pytest.mark.parametrize(("make", "d", "blocks", "parameters"), SMOOTH_SIZES)
def test_smooth_programs_are_small(
    make: Maker, d: int, blocks: int, parameters: int
) -> None:
    cost = count(emit(make(8, d, box(d)), 1e-6).network)
    assert (cost.blocks, cost.parameters <= parameters) == (blocks, True), cost


EXACT_KINDS = (
    *("mean", "gather", "mix", "attend", "max"),
    *("min", "abs", "relu", "exchange", "scale"),
)
SMOOTH_KINDS = (
    *("product", "normalise", "pow", "exp", "sin"),
    *("tanh", "logistic", "root", "log"),
)


class Drawn:
    """A random program, whose forms are scaled to size 2 at most."""

    def __init__(self, data: st.DataObject, n: int, d: int, kinds: tuple[str, ...]) -> None:
        self.data, self.n, self.d = data, n, d
        self.box = box(d, -1.0, 2.0)
        self.ranges = Ranges(self.box, n, F(1, 10**9))
        self.steps: list[ir.Step] = []
        for i in range(d):
            self.add(ir.Input(i))
        for _ in range(data.draw(st.integers(1, 12))):
            self.add(self.step(data.draw(st.sampled_from(kinds))))
        outputs = tuple(self.form() for _ in range(d))
        self.program = ir.Program(n, self.box, outputs)

    def add(self, step: ir.Step) -> ir.Step:
        self.ranges.step(step)
        self.steps.append(step)
        return step

    def rational(self) -> Fraction:
        above = self.data.draw(st.integers(-4, 4))
        return F(above, self.data.draw(st.sampled_from([1, 2, 3])))

    def form(self) -> ir.Form:
        total = ir.Form.constant(self.rational() if self.data.draw(st.booleans()) else 0)
        for _ in range(self.data.draw(st.integers(1, 3))):
            step = self.data.draw(st.sampled_from(self.steps[-5:]))
            total = total + ir.Form.of(step, self.rational() or 1)
        size = self.ranges.of(total).size
        return total if size <= 2 else total * (2 / F(ceil(size)))

    def taus(self) -> tuple[int, ...]:
        return tuple(self.data.draw(st.integers(0, self.n - 1)) for _ in range(self.n))

    def numbers(self) -> tuple[Fraction, ...]:
        return tuple(self.rational() for _ in range(self.n))

    def step(self, kind: str) -> ir.Step:
        a, b = self.form(), self.form()
        if kind == "exchange":
            first = self.data.draw(st.integers(0, 1))
            tau, low = list(range(self.n)), [True] * self.n
            for j in range(first, self.n - 1, 2):
                tau[j], tau[j + 1], low[j + 1] = j + 1, j, False
            return ir.Exchange(a, tuple(tau), tuple(low))
        if kind in ("root", "log"):
            above = ir.Form.of(self.add(ir.Absolute(a))) + ir.Form.constant(F(1, 2))
            if kind == "log":
                return ir.Unary(above, ir.Function("log"))
            s = self.data.draw(st.sampled_from([F(-1, 2), F(1, 2), F(-1)]))
            return ir.Unary(above, ir.Function("pow", s))
        if kind == "pow":
            return ir.Unary(a, ir.Function("pow", F(self.data.draw(st.integers(2, 4)))))
        if kind == "normalise":
            return ir.Normalise(ir.Normalised((a, b), F(1, 8)), 1)
        made: dict[str, Callable[[], ir.Step]] = {
            "mean": lambda: ir.Mean(a),
            "gather": lambda: ir.Gather(a, self.taus()),
            "mix": lambda: ir.Mix(a, tuple(self.numbers() for _ in range(self.n))),
            "attend": lambda: ir.Attend((a, b), (b, self.form()), self.form()),
            "max": lambda: ir.Maximum(a, b),
            "min": lambda: ir.Minimum(a, b),
            "abs": lambda: ir.Absolute(a),
            "relu": lambda: ir.Relu(a),
            "scale": lambda: ir.Scale(a, self.numbers()),
            "product": lambda: ir.Product(a, b),
            "exp": lambda: ir.Unary(a, ir.Function("exp")),
            "sin": lambda: ir.Unary(a, ir.Function("sin")),
            "tanh": lambda: ir.Unary(a, ir.Function("tanh")),
            "logistic": lambda: ir.Unary(a, ir.Function("logistic")),
        }
        return made[kind]()


def test_exponentials_of_masks_have_few_digits() -> None:
    exp = ir.Function("exp")
    assert image(exp, F(-(10**9)), up=False) == 0
    assert 0 < image(exp, F(-(10**9)), up=True) < F(1, 10**300)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_random_exact_programs(data: st.DataObject, n: int, d: int) -> None:
    program = Drawn(data, n, d, EXACT_KINDS).program
    made = emit(program, 1e-9)
    x = points(program, 12)
    np.testing.assert_allclose(
        reference(made, x), interpret(program, x), rtol=0, atol=1e-10
    )
    check_form(made, x)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_random_smooth_programs(data: st.DataObject, n: int, d: int) -> None:
    program = Drawn(data, n, d, EXACT_KINDS + SMOOTH_KINDS).program
    made = emit(program, 1e-9)
    x = points(program, 12)
    np.testing.assert_allclose(reference(made, x), interpret(program, x), rtol=0, atol=1e-6)
    check_form(made, x)
