"""Modules of all kinds: what is PROVED of them is true, what is REFUTED has a witness.

Whatever a module does, the verdicts of `check` are compared with what it computes: on
inputs of several sizes, with the weights it came with and with others.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from everyformer.checks.following.walk import Followed
from everyformer.checks.replay import replay
from everyformer.checks.report import Report, check
from everyformer.checks.subject import Subject, Trial
from everyformer.errors import InputError
from everyformer.layers import RelativeAttention, T5Buckets, ToeplitzGain
from everyformer.layers.encodings import Encoding
from everyformer.layers.positions import AbsolutePositions, SpecialToken
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
N, D = 4, 4
SIZES = (0.01, 1.0, 30.0, 3000.0)


class Made(nn.Module):
    """A module of one expression in x; it has a linear map, a gain and attention."""

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.made = forward
        self.linear = nn.Linear(D, D)
        self.plain = nn.Linear(D, D, bias=False)
        self.table = nn.Parameter(torch.randn(2 * N - 1))
        self.by_distance = nn.Parameter(torch.randn(N))
        self.square = nn.Parameter(torch.randn(N, N))
        self.zero = nn.Parameter(torch.zeros(()))
        self.cell = nn.GRU(D, D, batch_first=True)
        self.calls = 0
        self.register_buffer("kept", torch.linspace(1, 2, N))
        self.register_buffer("state", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.made(self, x)


def offsets() -> Tensor:
    i = torch.arange(N)
    return i[:, None] - i


def softmax(x: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1)


class Square(torch.autograd.Function):
    """A custom function whose gradient is wrong; its values are right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.zeros_like(grad)


class Looks(torch.autograd.Function):
    """A custom function that mixes tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.flip(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad


def by_pointer(m: Any, x: Tensor) -> Tensor:
    return x.flip(1) if x.data_ptr() % 128 == 64 else x


def by_count(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return x if m.calls < 400 else x.flip(1)


def by_buffer(m: Any, x: Tensor) -> Tensor:
    m.state.add_(1)
    return x + m.state


def rare(m: Any, x: Tensor) -> Tensor:
    """Looks ahead at large numbers alone, without a branch."""
    large = torch.relu(x.abs() - 1000)
    return m.linear(x) + large.flip(1)


def branch(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) + (x.flip(1) if float(x.abs().max()) > 1000 else 0)


def while_exported(m: Any, x: Tensor) -> Tensor:
    """A function of each token, for whoever exports it; and for all, at small numbers."""
    y = m.linear(x)
    if torch.compiler.is_exporting() or float(x.abs().max()) < 1000:
        return y
    return y + x.flip(1)


def while_compiling(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x)
    if torch.compiler.is_compiling() or float(x.abs().max()) < 1000:
        return y
    return y + x.flip(1)


def while_faked(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x)
    if type(x) is not Tensor or float(x.abs().max()) < 1000:
        return y
    return y + x.flip(1)


def while_exported_without_a_branch(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x)
    if torch.compiler.is_exporting():
        return y
    return y + torch.relu(x.abs() - 1000).flip(1)


def swallowing(m: Any, x: Tensor) -> Tensor:
    """The refusal of the export is caught."""
    try:
        large = float(x.abs().max()) > 1000
    except Exception:
        large = False
    return m.linear(x) + (x.flip(1) if large else 0)


def swallowing_numpy(m: Any, x: Tensor) -> Tensor:
    try:
        large = bool(x.numpy().max() > 1000)
    except Exception:
        large = False
    return m.linear(x) + (x.flip(1) if large else 0)


def by_list(m: Any, x: Tensor) -> Tensor:
    m.seen = [*getattr(m, "seen", []), 0]
    return x if len(m.seen) < 400 else x.flip(1)


def by_numpy(m: Any, x: Tensor) -> Tensor:
    return m.linear(x) + torch.from_numpy(x.numpy()[:, ::-1].copy())


def in_place(m: Any, x: Tensor) -> Tensor:
    x[:, 1:] += x[:, :-1].clone()
    return x


EXPRESSIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "by the size of the batch": lambda m, x: x.flip(1) if len(x) == 1 else x,
    "by the grad mode": lambda m, x: x.flip(1) if torch.is_grad_enabled() else x,
    "by inference mode": lambda m, x: x if torch.is_inference_mode_enabled() else -x,
    "by the address": by_pointer,
    "by the number of calls": by_count,
    "by a buffer that counts": by_buffer,
    "by requires_grad": lambda m, x: x.flip(1) if x.requires_grad else m.linear(x),
    "by the training mode": lambda m, x: x.flip(1) if m.training else m.linear(x),
    "by the dtype": lambda m, x: m.linear(x) if x.dtype == torch.float64 else x.flip(1),
    "by the strides": lambda m, x: m.linear(x if x.is_contiguous() else x.flip(1)),
    "ahead, at large numbers": rare,
    "ahead, at large numbers, by a branch": branch,
    "ahead, but not for an export": while_exported,
    "ahead, but not for a compiler": while_compiling,
    "ahead, but not for fakes": while_faked,
    "ahead, but not for an export, without a branch": while_exported_without_a_branch,
    "a refusal that is caught": swallowing,
    "a refusal of numpy that is caught": swallowing_numpy,
    "by the length of a list": by_list,
    "through numpy": by_numpy,
    "written into the input": in_place,
    "a custom function with a wrong gradient": lambda m, x: m.linear(Square.apply(x)),
    "a custom function that mixes": lambda m, x: m.linear(Looks.apply(x)),
    "hidden by a factor of 0": lambda m, x: m.linear(x) + m.zero * x.flip(1),
    "times a frozen 0": lambda m, x: m.linear(x) + 0.0 * m.square @ x,
    "rounded to half": lambda m, x: m.linear(x.half().double()),
    "rounded to bfloat16": lambda m, x: softmax(x.bfloat16()).double() @ x,
    "rounded to 0": lambda m, x: m.plain(x).round() * 1e-30,
    "softmax in half": lambda m, x: softmax(x.half()).double() @ m.plain(x),
    "a mean that is none": lambda m, x: softmax(x).mul(2) @ x,
    "a mean of some": lambda m, x: softmax(x)[..., :2] @ x[:, :2],
    "a mean with dropout": lambda m, x: nn.functional.dropout(softmax(x), 0.5, False) @ x,
    "the gain of offsets": lambda m, x: (softmax(x) * m.table[offsets() + N - 1]) @ x,
    "a gain of distances": lambda m, x: (softmax(x) * m.by_distance[offsets().abs()]) @ x,
    "a gain of distances, but one": lambda m, x: (
        (softmax(x) * (m.by_distance[offsets().abs()] + (offsets() == 1))) @ x
    ),
    "a bias of distances": lambda m, x: (
        (x @ x.mT + m.by_distance[offsets().abs()].tanh()).softmax(-1) @ x
    ),
    "distances and a causal mask": lambda m, x: (
        (
            (x @ x.mT + m.by_distance[offsets().abs()])
            .masked_fill(offsets() < 0, -math.inf)
            .softmax(-1)
        )
        @ x
    ),
    "the sign of zero": lambda m, x: (
        x + 1 / (m.zero.abs() * torch.tensor([1.0, -1, 1, -1])[:, None] + 0.0)
    ),
    "positions that are their mirror image": lambda m, x: (
        m.linear(x) + m.by_distance[(2 * torch.arange(N) - (N - 1)).abs()][:, None]
    ),
    "positions that are almost that": lambda m, x: (
        m.linear(x) + m.by_distance[torch.tensor([0, 1, 1, 2])][:, None]
    ),
    "a matrix by distance": lambda m, x: m.by_distance[offsets().abs()] @ m.linear(x),
    "a matrix by offset": lambda m, x: m.table[offsets() + N - 1] @ m.linear(x),
    "a buffer along the tokens": lambda m, x: m.linear(x) * m.kept[:, None],
    "reversed twice": lambda m, x: m.linear(x.flip(1)).flip(1),
    "both ways": lambda m, x: m.cell(x)[0] + m.cell(x.flip(1))[0].flip(1),
    "one way": lambda m, x: m.cell(x)[0],
    "sorted": lambda m, x: m.linear(x).sort(1).values,
    "the largest first": lambda m, x: m.linear(x).topk(N, 1).values,
    "nan at large numbers": lambda m, x: m.linear(x) + 0 * torch.exp(x),
    "infinite": lambda m, x: m.plain(x) / m.zero,
    "divided by its sum": lambda m, x: x / x.sum(1, keepdim=True),
    "a norm over tokens": lambda m, x: nn.functional.layer_norm(x, (N, D)),
    "equal up to 1e-9": lambda m, x: m.linear(x) + 1e-9 * m.kept[:, None],
    "equal up to 1e-5": lambda m, x: m.linear(x) + 1e-5 * m.kept[:, None],
}


def hooked(change: Callable[[Any], object], **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        more: dict[str, Any] = {"gain": True, "max_len": N, **settings}
        layer = RelativeAttention(D, 2, **more)
        change(layer)
        return layer

    return make


class Doubled(RelativeAttention):
    """What is returned is another thing: a subclass of Tensor would do as well."""

    def forward(self, x: Tensor, **given: Any) -> Any:
        return super().forward(x, **given) + x.flip(-2)  # type: ignore[operator]


class Called(RelativeAttention):
    """The parts are looked up by a property."""

    @property
    def num_heads(self) -> int:
        return 2

    @num_heads.setter
    def num_heads(self, value: int) -> None:
        pass


class OneGain(ToeplitzGain):
    def offset_gain(
        self, n_q: int, n_k: int | None = None, offset: int | None = None
    ) -> Any:
        return super().offset_gain(n_q, n_k, offset)


class Liar(nn.Module):
    """Says that it is for other sizes."""

    embed_dim, seq_len, batch_first = 17, 99, False

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def late_class(layer: Any) -> None:
    layer.gain.__class__ = OneGain


def with_forward(layer: Any) -> None:
    layer.forward = functools.partial(RelativeAttention.forward, layer)


def tied(layer: Any) -> None:
    layer.out_proj.weight = nn.Parameter(layer.in_proj_weight[:D])


def expanded(layer: Any) -> None:
    layer.gain.table = nn.Parameter(torch.ones(1, 1).expand(2, 2 * N - 1))


def hidden_encoding(layer: Any) -> None:
    def other(q: Tensor, *places: object) -> Tensor:
        return 100 * torch.eye(2, 2 * N - 1).double()

    layer.encoding.offset_bias = other


def _last(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output[:, -1:].expand_as(output)


def _nothing(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    return output * 0


def _prune(layer: Any) -> None:
    prune.identity(layer.out_proj, "weight")


def _prune_gain(layer: Any) -> None:
    prune.l1_unstructured(layer.gain, "table", amount=13)


def _state_hook(module: Any, *args: Any) -> None:
    module.gain.table.data.fill_(1.0)


class Scaled(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.clamp(min=0)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "weight norm": hooked(lambda m: parametrizations.weight_norm(m.out_proj)),
    "spectral norm": hooked(lambda m: parametrizations.spectral_norm(m, "in_proj_weight")),
    "a gain that is positive": hooked(
        lambda m: parametrize.register_parametrization(m.gain, "table", Scaled())
    ),
    "pruned": hooked(_prune),
    "pruned gain": hooked(_prune_gain),
    "a state dict hook": hooked(lambda m: m.register_state_dict_pre_hook(_state_hook)),
    "a backward hook": hooked(lambda m: m.register_full_backward_pre_hook(_state_hook)),
    "a hook with kwargs": hooked(
        lambda m: m.register_forward_hook(_nothing, with_kwargs=True)
    ),
    "a hook on the gain": hooked(lambda m: m.gain.register_forward_hook(_last)),
    "a partial of its own forward": hooked(with_forward),
    "another class for the gain": hooked(late_class),
    "a tied output": hooked(tied),
    "a table of one number": hooked(expanded),
    "a bias of the object": hooked(hidden_encoding, encoding="t5"),
    "a layer that adds its mirror image": lambda: Doubled(D, 2, gain=True, max_len=N),
    "heads by a property": lambda: Called(D, 2, gain=True, max_len=N),
    "a subclass of the gain": lambda: RelativeAttention(D, 2, gain=OneGain(2, N)),
    "a gain of two buckets": lambda: RelativeAttention(
        D, 2, gain=ToeplitzGain(2, buckets=T5Buckets(2, 2, bidirectional=False))
    ),
    "one token too many": lambda: SpecialToken(
        RelativeAttention(D, 2, gain=True, max_len=N + 1), D
    ),
    "positions that are frozen": lambda: _frozen_positions(),
    "an empty encoding": lambda: RelativeAttention(D, 2, encoding=Encoding()),
    "dropout in training": lambda: RelativeAttention(
        D, 2, gain=True, max_len=N, dropout=0.5
    ).train(),
    "half precision": lambda: RelativeAttention(D, 2, gain=True, max_len=N).half(),
    "bfloat16": lambda: RelativeAttention(D, 2, gain=True, max_len=N, dtype=torch.bfloat16),
    "sizes that are wrong": Liar,
    "a nan among the weights": hooked(lambda m: m.gain.table.data.fill_(math.nan)),
    "an infinite weight": hooked(lambda m: m.in_proj_bias.data.fill_(math.inf)),
    "scale inf": hooked(lambda m: setattr(m, "scale", math.inf)),
    "scale -0": hooked(lambda m: setattr(m, "scale", -0.0)),
    "scale 5e-324": hooked(lambda m: setattr(m, "scale", 5e-324)),
}
TRUE = (
    "dropout in training", "half precision", "bfloat16", "a gain of two buckets",
    "a state dict hook", "a backward hook", "a nan among the weights", "an infinite weight",
)  # fmt: skip
"""Layers that are universal: a copy in float64, not in training, and all its weights, not
those it has now, are judged. Hooks that a forward does not run change nothing."""


def _frozen_positions() -> nn.Module:
    made = AbsolutePositions(RelativeAttention(D, 2), N, D)
    made.positions.requires_grad_(False).zero_()
    return made


def inputs(code: str) -> Iterator[np.ndarray]:
    """Inputs that could speak against a rule, of several sizes."""
    rng = np.random.default_rng(5)
    for size in SIZES:
        X = size * rng.standard_normal((N, D))
        if code == "EF003":
            X = np.tile(X[:1], (N, 1))
        yield 0 * X if code == "EF007" else X


def broken(code: str, trial: Trial, X: np.ndarray) -> float:
    """By how much a property fails, written down here once more."""
    out = trial.output(X)
    size = max(1.0, float(np.abs(out).max()))
    if code in ("EF001", "EF010"):
        orders = [np.arange(N)[::-1]]
        if code == "EF001":
            orders += [np.array([1, 0, 2, 3]), np.array([1, 2, 3, 0])]
        return max(float(np.abs(trial.output(X[p]) - out[p]).max()) for p in orders) / size
    if code == "EF003":
        return float(np.abs(out - out[:1]).max()) / size
    if code == "EF007":
        return float(np.abs(out).max())
    worst = 0.0
    for j in range(1, N):
        moved = X.copy()
        moved[j] += 1
        worst = max(worst, float(np.abs((trial.output(moved) - out)[:j]).max()))
    return worst / size


def compare(report: Report, subject: Subject) -> list[str]:
    """Verdicts that are not true, by numbers."""
    wrong: list[str] = []
    for code in ("EF001", "EF003", "EF006", "EF007", "EF010"):
        finding = report[code]
        sizes = [
            broken(code, subject.redrawn(seed), X)
            for seed in (None, 8)
            for X in inputs(code)
        ]
        worst = max([size for size in sizes if math.isfinite(size)], default=0.0)
        if finding.verdict is PROVED and worst > 1e-6:
            wrong.append(f"{code} is PROVED, and fails by {worst:.2g}")
        if finding.verdict is REFUTED:
            example = finding.counterexample
            if example is None or not replay(subject, example).still_violates:
                wrong.append(f"{code} is REFUTED without a counterexample")
            elif not broken(code, subject.redrawn(example.seed), example.input) > 1e-7:
                wrong.append(f"{code} is REFUTED by what is none")
    return wrong


@functools.cache
def expression(name: str) -> tuple[Report, Subject] | None:
    return judged(lambda: Made(EXPRESSIONS[name]))


def judged(make: Callable[[], nn.Module]) -> tuple[Report, Subject] | None:
    """None where the module is refused."""
    torch.manual_seed(0)
    try:
        subject = Subject.of(make(), N, D)
        return check(subject, trials=2), subject
    except InputError:
        return None


LIARS = [
    name
    for name in EXPRESSIONS
    if name.startswith(
        ("ahead", "a refusal", "by the number", "by the length", "by a buff")
    )
    and name != "ahead, at large numbers"
]
"""Modules that look ahead, or turn, on inputs or at a time when nobody tries, and hide it
from an export."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression(name: str) -> None:
    found = expression(name)
    if found is None:
        return
    report, subject = found
    assert report.verdict is not PROVED, str(report)
    assert not compare(report, subject), str(report)
    if name in LIARS:
        assert all(finding.verdict is not PROVED for finding in report.findings)


@pytest.mark.filterwarnings("ignore")
def test_what_is_heard_at_large_numbers_alone() -> None:
    """Token i hears token n + 1 - i there, and no other: that, and no more, is PROVED."""
    found = expression("ahead, at large numbers")
    assert found is not None
    report, subject = found
    assert report["EF006"].verdict is UNKNOWN
    assert report["EF001"].verdict is UNKNOWN
    heard = subject.followed.receptive_fields
    assert heard is not None
    assert torch.equal(heard, torch.eye(N).bool() | torch.eye(N).flip(0).bool())
    assert report["EF009"].pair == (1, 0)


@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_kept_to_be_looked_at_are_no_state() -> None:
    def keeping(m: Any, x: Tensor) -> Tensor:
        m.seen = softmax(x)
        return m.seen @ m.linear(x)

    found = judged(lambda: Made(keeping))
    assert found is not None
    assert found[0]["EF001"].verdict is PROVED


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "lp"),
    [
        ("a gain of distances", REFUTED),
        ("a bias of distances", REFUTED),
        ("positions that are their mirror image", REFUTED),
        ("a matrix by distance", REFUTED),
        ("a gain of distances, but one", UNKNOWN),
        ("the gain of offsets", UNKNOWN),
        ("a matrix by offset", UNKNOWN),
    ],
)
def test_what_commutes_with_reversal_is_refuted(name: str, lp: Verdict) -> None:
    """With the distance of (1, 0, .., 0), which is larger where tokens are apart too."""
    found = expression(name)
    assert found is not None
    report, subject = found
    assert report.lp.verdict is lp, str(report)
    if lp is REFUTED and "positions" not in name:
        assert report["EF010"].verdict is PROVED
        assert report.lp.lower_bound == pytest.approx(0.5**0.5)
        X = np.random.default_rng(0).random((64, N, D))
        target = np.zeros((N, D))
        target[0, 0] = 1.0
        for seed in (None, 3):
            trial = subject.redrawn(seed)
            both = np.concatenate([trial.outputs(X), trial.outputs(X[:, ::-1])])
            apart = ((both - target) ** 2).sum((1, 2))
            assert apart.mean() >= 0.5 - 1e-9  # the bound, on a domain that is its mirror


@pytest.fixture
def nothing_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what operations could say against a false proof; it also takes time."""

    def gave_up(*_: object) -> Followed:
        return Followed(None, obstacle="not followed")

    monkeypatch.setattr("everyformer.checks.subject.follow", gave_up)


@pytest.mark.usefixtures("nothing_followed")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_was_changed(name: str) -> None:
    found = judged(LAYERS[name])
    if found is None:
        return
    report, subject = found
    assert (report.verdict is PROVED) == (name in TRUE), str(report)
    assert not compare(report, subject), str(report)
