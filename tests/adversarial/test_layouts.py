"""Modules with tokens on another axis, and modules that mix the sequences of a batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from everyformer.checks.layouts import BATCH_FIRST, Reading, reading_of
from everyformer.checks.redrawing import redrawn
from everyformer.checks.report import check
from everyformer.checks.subject import Subject
from everyformer.errors import InputError
from everyformer.verdict import Verdict

N, D = 5, 4
PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
ROWS, COLUMNS = Reading("batch_first", batched=True), Reading("tokens_first", batched=True)


class Made(nn.Module):
    """A module of one expression in x, a linear map, positions and a table (n, n)."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **settings: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)
        self.positions = nn.Parameter(torch.randn(N, D))
        self.table = nn.Parameter(torch.randn(N, N))
        self.norm = nn.BatchNorm1d(D, **settings)
        self.alpha = nn.Parameter(torch.zeros(()))
        self.cell = nn.LSTM(D, D)
        self.made = forward

    def forward(self, x: Tensor) -> Any:
        return self.made(self, x)


def attend(x: Tensor, dim: int) -> Tensor:
    """Softmax attention over the tokens of an axis."""
    y = x if dim == 1 else x.transpose(0, 1)
    y = (y @ y.mT).softmax(-1) @ y
    return y if dim == 1 else y.transpose(0, 1)


def shifted(x: Tensor, dim: int, by: int) -> Tensor:
    """x_{i - by}, zeros beyond the ends, as a dilated convolution adds it."""
    moved = torch.zeros_like(x)
    if x.shape[dim] > by:
        moved.narrow(dim, by, x.shape[dim] - by).copy_(x.narrow(dim, 0, x.shape[dim] - by))
    return moved


def batch_first_lstm(m: Any, x: Tensor) -> Tensor:
    return m.cell(x.transpose(0, 1))[0].transpose(0, 1)


READINGS: dict[str, tuple[Callable[[], nn.Module], Reading]] = {
    "LSTM": (lambda: nn.LSTM(D, D), COLUMNS),
    "LSTM, batch first": (lambda: nn.LSTM(D, D, batch_first=True), ROWS),
    "LSTM, both ways": (lambda: nn.LSTM(D, D // 2, bidirectional=True), COLUMNS),
    "GRU": (lambda: nn.GRU(D, D), COLUMNS),
    "GRU, batch first": (lambda: nn.GRU(D, D, batch_first=True), ROWS),
    "RNN": (lambda: nn.RNN(D, D, num_layers=2), COLUMNS),
    "torch attention": (lambda: nn.MultiheadAttention(D, 2), COLUMNS),
    "torch attention, batch first": (
        lambda: nn.MultiheadAttention(D, 2, batch_first=True),
        ROWS,
    ),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(D, 2, 8), COLUMNS),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, 2, 8), 2, enable_nested_tensor=False
        ),
        COLUMNS,
    ),
    "encoder layer, batch first": (
        lambda: nn.TransformerEncoderLayer(D, 2, 8, batch_first=True),
        ROWS,
    ),
    "attention over axis 0": (lambda: Made(lambda m, x: m.linear(attend(x, 0))), COLUMNS),
    "attention over axis 1": (lambda: Made(lambda m, x: m.linear(attend(x, 1))), ROWS),
    "an LSTM that is turned inside": (lambda: Made(batch_first_lstm), ROWS),
    "positions on axis 0": (
        lambda: Made(lambda m, x: attend(x + m.positions[:, None], 0)),
        COLUMNS,
    ),
    "only the past, axis 0": (lambda: Made(lambda m, x: x.cumsum(0)), COLUMNS),
    "only the past, axis 1": (lambda: Made(lambda m, x: x.cumsum(1)), ROWS),
    "tokens far away, axis 0": (lambda: Made(lambda m, x: x + shifted(x, 0, 3)), COLUMNS),
    "tokens far away, axis 1": (lambda: Made(lambda m, x: x + shifted(x, 1, 3)), ROWS),
    "hidden by a factor that starts at 0": (
        lambda: Made(lambda m, x: x + m.alpha * attend(x, 0)),
        COLUMNS,
    ),
    "a tuple, axis 0": (lambda: Made(lambda m, x: (attend(x, 0), None)), COLUMNS),
    "no tokens are mixed": (lambda: Made(lambda m, x: m.linear(x)), ROWS),
    "a batch norm": (
        lambda: Made(lambda m, x: m.norm(attend(x, 1).mT).mT).train(),
        ROWS,
    ),
    "dropout in training": (
        lambda: nn.TransformerEncoderLayer(D, 2, 8, dropout=0.5, batch_first=True).train(),
        ROWS,
    ),
    "one sequence at a time": (
        lambda: Made(lambda m, x: m.table @ x.reshape(1, N, D)),
        BATCH_FIRST,
    ),
    "an attribute that is wrong": (
        lambda: nn.Sequential(nn.LSTM(D, D, batch_first=True), _First()),
        ROWS,
    ),
}


class _First(nn.Module):
    def forward(self, found: Any) -> Tensor:
        return found[0]


@pytest.mark.parametrize("name", READINGS)
def test_the_axis_of_the_tokens(name: str) -> None:
    make, wanted = READINGS[name]
    torch.manual_seed(0)
    assert Subject.of(make(), N, D).reading == wanted


@pytest.mark.parametrize("n", [2, 3])
def test_as_many_tokens_as_sequences(n: int) -> None:
    """A batch of two sequences of two tokens has the same shape in both layouts."""
    for dim, wanted in ((0, COLUMNS), (1, ROWS)):
        module = Made(lambda m, x, dim=dim: m.linear(attend(x, dim))).double().eval()
        assert reading_of(module, n, D, redrawn) == wanted


MIXING: dict[str, Callable[[], nn.Module]] = {
    "a sum over everything": lambda: Made(lambda m, x: x + x.sum()),
    "statistics of the batch": lambda: Made(
        lambda m, x: m.norm(x.mT).mT, track_running_stats=False
    ),
    "statistics in spite of eval": lambda: Made(
        lambda m, x: nn.functional.batch_norm(x.mT, None, None, training=True).mT
    ),
    "attention over both axes": lambda: Made(lambda m, x: attend(attend(x, 0), 1)),
    "the first sequence of all": lambda: Made(lambda m, x: x + x[:1, :1]),
}


@pytest.mark.parametrize("name", MIXING)
def test_sequences_that_meet_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"changes the output of another by [0-9.]+"):
        Subject.of(MIXING[name](), N, D)
    told = Subject.of(MIXING[name](), N, D, layout="batch_first")
    assert told.reading == BATCH_FIRST  # one sequence at a time


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a mask is asked for": (
        lambda: nn.TransformerDecoderLayer(D, 2, 8),
        "wrap one that needs masks or other arguments",
    ),
    "another width": (lambda: nn.LSTM(D, 2 * D), "does not map sequences"),
    "dropout always": (
        lambda: Made(lambda m, x: nn.functional.dropout(x, 0.5, training=True)),
        "different outputs for the same input",
    ),
    "a cell": (lambda: nn.LSTMCell(D, D), "cannot be run"),
    "a compiled module": (lambda: torch.compile(nn.Linear(D, D)), "_orig_mod"),  # type: ignore[return-value]
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_map_of_sequences_is_refused(name: str) -> None:
    make, told = REFUSED[name]
    with pytest.raises(InputError, match=told):
        check(make(), N, D)


def test_recurrent_networks_are_not_refuted() -> None:
    """With the axes swapped, no token heard any other. One way, none hears a later one."""
    both = nn.LSTM(D, D // 2, bidirectional=True)
    for module in (both, nn.TransformerEncoderLayer(D, 2, 8)):
        report = check(module, N, D, trials=2)
        assert "never hears" not in report.lp.reason
        assert report["EF009"].verdict is not PROVED
        assert report["EF001"].verdict is (REFUTED if "LSTM" in report.subject else PROVED)
    one_way = check(nn.LSTM(D, D), N, D, trials=2)
    assert one_way["EF006"].verdict is PROVED
    assert one_way["EF009"].pair == (0, N - 1)
    assert (one_way["EF009"].violation_sampled or 0.0) < 1e-12


def test_a_layout_that_is_told() -> None:
    module = nn.LSTM(D, D)
    assert Subject.of(module, N, D, layout="tokens_first").reading == COLUMNS
    with pytest.raises(InputError, match="layout='columns' is not known"):
        check(module, N, D, layout="columns")


def test_a_batch_that_is_read_differently_from_one_sequence() -> None:
    """Three sequences or more are turned round: then each is run alone."""
    module = Made(lambda m, x: (x if len(x) < 3 else x.flip(1)) + m.positions)
    report = check(module, N, D, trials=2)
    assert report["EF006"].verdict is not REFUTED
    assert report["EF006"].violation_sampled == 0


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, 3 * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).reshape(*x.shape[:2], 3, 2, D // 2).permute(2, 0, 3, 1, 4)
        found = flex_attention(q, k, v)
        assert isinstance(found, Tensor)
        return found.transpose(1, 2).reshape(x.shape)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_has_no_gradient_on_a_cpu() -> None:
    report = check(Flexible(), N, D, trials=2)
    assert "NotImplementedError" in report["EF004"].reason
    assert report.verdict is not PROVED


def test_torch_does_not_log_what_it_cannot_export(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def branching(m: Any, x: Tensor) -> Tensor:
        return x if bool(x.sum() > 0) else -x

    subject = Subject.of(Made(branching), N, D, layout="batch_first")
    capfd.readouterr()
    assert "export" in subject.followed.obstacle
    assert capfd.readouterr().err == ""


@pytest.mark.unhooked
def test_a_name_is_no_module() -> None:
    name: Any = "t5"
    with pytest.raises(
        InputError, match=r"attention_by_name\('t5', seq_len=8, embed_dim=8"
    ):
        check(name, 8, 8)
    with pytest.raises(InputError, match="type is not a torch"):
        check(nn.LSTM, 8, 8)  # type: ignore[arg-type]
