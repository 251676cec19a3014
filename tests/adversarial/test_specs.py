"""Layers whose `spec()` says more than they do: none may be PROVED universal."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import everyformer.layers.attention as attention_module
from everyformer.checks.following.walk import Followed
from everyformer.checks.report import Report, check
from everyformer.checks.subject import Subject
from everyformer.errors import InputError
from everyformer.layers import RelativeAttention, T5Buckets, ToeplitzGain
from everyformer.layers.by_name import attention_by_name
from everyformer.layers.encodings import Alibi, Encoding
from everyformer.layers.offsets import Exact
from everyformer.layers.positions import AbsolutePositions, SpecialToken
from everyformer.layers.self_attention import SelfAttention
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import stranger
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
N, D = 4, 4


def urpe(cls: type[RelativeAttention] = RelativeAttention, **settings: Any) -> Any:
    """A layer that is PROVED when nobody tampers with it."""
    settings = {"gain": True, "max_len": N, **settings}
    return cls(D, 2, **settings)


def judged(module: nn.Module) -> Report:
    return check(module, N, D, trials=2)


class TwoBlocks(RelativeAttention):
    def forward(self, x: Tensor, **_: Any) -> Any:
        half = x.shape[-2] // 2
        parts = [super(TwoBlocks, self).forward(p) for p in x.split(half, -2)]
        return torch.cat([p for p in parts if isinstance(p, Tensor)], -2)


class CausalBySlicing(RelativeAttention):
    def forward(self, x: Tensor, **_: Any) -> Any:
        rows: list[Any] = [
            super(CausalBySlicing, self).forward(x[..., : i + 1, :])[..., -1, :]  # type: ignore[index]
            for i in range(x.shape[-2])
        ]
        return torch.stack(rows, -2)


class TimesZero(RelativeAttention):
    def forward(self, x: Tensor, **_: Any) -> Any:
        return super().forward(x) * 0  # type: ignore[operator]


class Mean(RelativeAttention):
    def forward(self, x: Tensor, **_: Any) -> Any:
        return x.mean(-2, keepdim=True).expand_as(x)


class OtherWeights(RelativeAttention):
    """Forward is the library's; what it calls is not."""

    def _weights(self, *args: Any, **kwargs: Any) -> Any:
        return torch.ones_like(super()._weights(*args, **kwargs)) / N


class OtherSum(RelativeAttention):
    def _mixed(self, weights: Tensor, heads: Any) -> Any:
        return super()._mixed(weights, heads).mean(-2, keepdim=True).expand_as(heads.v)


class OtherCall(RelativeAttention):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs).mean(-2, keepdim=True).expand(-1, N, -1)


class HiddenScale(RelativeAttention):
    """An attribute of the class hides the one that was set."""

    scale = property(lambda self: 0.0, lambda self, value: None)  # type: ignore[assignment]


class HiddenGain(RelativeAttention):
    """The gain is there for who asks first, and gone in the forward."""

    asked = 0

    @property
    def gain(self) -> Any:
        self.asked += 1
        return self._modules["gain"] if self.asked < 20 else None

    @gain.setter
    def gain(self, value: Any) -> None:
        self._modules["gain"] = value


class LateMixin:
    """After the layer in the order of classes, before nn.Module."""

    def _call_impl(self, x: Tensor) -> Any:
        return x * 0


WithLateMixin: Any = type("WithLateMixin", (RelativeAttention, LateMixin), {})


class EarlyMixin(nn.Module):
    def forward(self, x: Tensor, **_: Any) -> Any:
        return super().forward(x).flip(-2)  # type: ignore[operator, union-attr]


class WithEarlyMixin(EarlyMixin, RelativeAttention):
    pass


class CopiesAnother(RelativeAttention):
    def __deepcopy__(self, memo: Any) -> Any:
        return urpe(TimesZero)


class Distance:
    """Buckets of |i - j|: the layer commutes with reversal."""

    size = N

    def check(self, n: int) -> None:
        """Every length."""

    def __call__(self, offsets: Tensor) -> Tensor:
        return offsets.abs()


class Circular(Distance):
    """(i - j) mod n: the layer commutes with shifts."""

    def __call__(self, offsets: Tensor) -> Tensor:
        return offsets % N


class Turning(Distance):
    """Every offset its own entry, until it was asked a few times."""

    size = 2 * N - 1

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, offsets: Tensor) -> Tensor:
        self.calls += 1
        return offsets + N - 1 if self.calls < 6 else offsets.abs()


@dataclass(frozen=True)
class Nearest(Exact):
    """A subclass of the library's index."""

    def __call__(self, offsets: Tensor) -> Tensor:
        return torch.zeros_like(offsets)


class ConstantGain(ToeplitzGain):
    def matrix(
        self, n_q: int, n_k: int | None = None, graph: Any = None, offset: Any = None
    ) -> Any:
        return (
            super()
            .matrix(n_q, n_k, graph, offset)
            .mean(-1, keepdim=True)
            .expand(1, -1, -1, n_q)
        )


class FixedBias(Encoding):
    """An encoding of one's own that does not say that its numbers are fixed."""

    def pair_bias(
        self, q: Tensor, k: Tensor, scale: float, graph: Any, offset: Any = None
    ) -> Any:
        i = torch.arange(q.shape[-2])
        return 50.0 * (i[:, None] == i).to(q.dtype).expand(1, q.shape[1], -1, -1)


class SameGainTwice(ToeplitzGain):
    """A table with one number for all entries of a row."""

    def __init__(self) -> None:
        super().__init__(2, N)
        self.table = nn.Parameter(torch.ones(2, 1).expand(2, 2 * N - 1))


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0 * x


class Lying(nn.Module):
    """A class of one's own, with its own forward and a spec that is not true of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def spec(self) -> AttentionSpec:
        return AttentionSpec("liar", gain=True)


class LyingWell(Lying):
    """Two inherited layers deep, and mixing all tokens with all."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(N, N))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.table @ x)


class Wrapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = urpe()
        self.spec = self.inner.spec

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).mean(-2, keepdim=True).expand_as(x)


class Forwarding(Wrapping):
    """All that it lacks it asks its part for, as a compiled module does."""

    def __init__(self) -> None:
        super().__init__()
        del self.spec

    def __getattr__(self, name: str) -> Any:
        if name == "spec":
            return self._modules["inner"].spec  # type: ignore[union-attr]
        return super().__getattr__(name)


@pytest.fixture
def nothing_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what operations could say against a false proof; it also takes time."""

    def gave_up(*_: object) -> Followed:
        return Followed(None, obstacle="not followed")

    monkeypatch.setattr("everyformer.checks.subject.follow", gave_up)


def edited(change: Callable[[Any], object], **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        layer = urpe(**settings)
        change(layer)
        return layer

    return make


def _replace_gain_table(layer: Any) -> None:
    del layer.gain.table
    layer.gain.register_buffer("table", torch.ones(2, 2 * N - 1))


def _share_table(layer: Any) -> None:
    layer.encoding.table = layer.gain.table


def _share_storage(layer: Any) -> None:
    layer.encoding.table = nn.Parameter(layer.gain.table.data)


def _another_class(layer: Any) -> None:
    layer.__class__ = Mean


def _bound(function: Callable[..., Any]) -> Callable[[Any], None]:
    def change(layer: Any) -> None:
        layer.forward = function.__get__(layer)

    return change


def _set(**values: Any) -> Callable[[Any], None]:
    return lambda layer: layer.__dict__.update(values)


def _halved(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.mean(-2, keepdim=True).expand_as(output)


def _mean(self: Any, x: Tensor) -> Tensor:
    return x.mean(-2, keepdim=True).expand_as(x)


def _uniform(*_: Any) -> Tensor:
    return torch.ones(1, 2, N, N, dtype=torch.float64) / N


def _forget(module: nn.Module, args: Any) -> Any:
    return (0 * args[0],)


def _ones(module: Any, args: Any) -> None:
    module.gain.table.data = torch.ones_like(module.gain.table)


class Quiet(nn.Parameter):
    """A parameter of another class, which may do anything to those who use it."""


class Halving(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.mean(-2, keepdim=True).expand_as(input))


class ZeroWeight(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 0 * weight


ATTACKS: dict[str, Callable[[], nn.Module]] = {
    "a table of one number": lambda: urpe(max_len=1, clamp=True),
    "clipped at the nearest offsets, by the index": lambda: urpe(
        gain=ToeplitzGain(2, buckets=Nearest(1, True))
    ),
    "buckets of |i - j|": lambda: urpe(gain=ToeplitzGain(2, buckets=Distance())),
    "buckets of i - j mod n": lambda: urpe(gain=ToeplitzGain(2, buckets=Circular())),
    "an index that changes": lambda: urpe(gain=ToeplitzGain(2, buckets=Turning())),
    "scale 0": lambda: urpe(scale=0.0),
    "scale nan": edited(_set(scale=float("nan"))),
    "scale inf": edited(_set(scale=float("inf"))),
    "scale 1e-320": lambda: urpe(scale=1e-320),
    "two blocks": lambda: urpe(TwoBlocks),
    "causal by slicing": lambda: urpe(CausalBySlicing),
    "times zero": lambda: urpe(TimesZero),
    "a mean": lambda: urpe(Mean),
    "other weights": lambda: urpe(OtherWeights),
    "another sum": lambda: urpe(OtherSum),
    "another call": lambda: urpe(OtherCall),
    "a property instead of the scale": lambda: urpe(HiddenScale),
    "a property instead of the gain": lambda: urpe(HiddenGain),
    "a class after the layer": lambda: urpe(WithLateMixin),
    "a class before the layer": lambda: urpe(WithEarlyMixin),
    "a copy of another class": lambda: urpe(CopiesAnother),
    "another class at run time": edited(_another_class),
    "forward of the object": edited(_bound(_mean)),
    "weights of the object": edited(_set(_weights=_uniform)),
    "a spec of the object": edited(_set(spec=lambda: AttentionSpec("x", gain=True))),
    "the spec of a part": Wrapping,
    "the spec of a part, by __getattr__": Forwarding,
    "a forward hook": edited(lambda layer: layer.register_forward_hook(_halved)),
    "a forward hook of a part": edited(
        lambda layer: layer.out_proj.register_forward_hook(_halved)
    ),
    "a forward pre-hook": edited(lambda layer: layer.register_forward_pre_hook(_forget)),
    "a pre-hook that drops the gain": edited(
        lambda layer: layer.register_forward_pre_hook(_ones)
    ),
    "a frozen gain": edited(lambda layer: layer.gain.requires_grad_(False)),
    "a frozen encoding": edited(
        lambda layer: layer.encoding.requires_grad_(False), encoding="t5"
    ),
    "frozen projections": edited(lambda layer: layer.in_proj_weight.requires_grad_(False)),
    "a frozen bias": edited(lambda layer: layer.in_proj_bias.requires_grad_(False)),
    "a frozen output": edited(lambda layer: layer.out_proj.requires_grad_(False)),
    "a gain in a buffer": edited(_replace_gain_table),
    "a gain shared with the bias": edited(_share_table, encoding="t5"),
    "a gain that lies where the bias does": edited(_share_storage, encoding="t5"),
    "a gain of one number, expanded": lambda: urpe(gain=SameGainTwice()),
    "another output": edited(lambda layer: setattr(layer, "out_proj", Scaled())),
    "attention as the output": edited(lambda layer: setattr(layer, "out_proj", urpe())),
    "parametrised projections": edited(
        lambda layer: parametrize.register_parametrization(
            layer, "in_proj_weight", ZeroWeight()
        )
    ),
    "an index exchanged later": edited(
        lambda layer: setattr(layer.gain, "index", Exact(1, clamp=True))
    ),
    "a parameter of another type": edited(
        lambda layer: setattr(layer.gain, "table", Quiet(torch.ones(2, 2 * N - 1)))
    ),
    "a forward that wraps its own": edited(
        lambda layer: setattr(layer, "forward", functools.partial(layer.forward))
    ),
    "an encoding without a gain's way out": lambda: urpe(encoding="t5", gain=None),
    "a linear map with another forward": edited(
        lambda layer: setattr(layer.out_proj, "forward", nn.Identity())
    ),
    "a part that is a subclass": edited(
        lambda layer: setattr(layer, "out_proj", Halving(D, D))
    ),
    "a parametrised output": edited(
        lambda layer: parametrizations.spectral_norm(layer.out_proj)
    ),
    "a parametrised gain": edited(
        lambda layer: parametrize.register_parametrization(
            layer.gain, "table", ZeroWeight(), unsafe=True
        )
    ),
    "a gain of one's own": lambda: urpe(gain=ConstantGain(2, N)),
    "an encoding of one's own": lambda: urpe(encoding=FixedBias()),
    "ALiBi that says it is not fixed": edited(
        lambda layer: setattr(layer.encoding, "fixed", False), encoding=Alibi(2)
    ),
    "T5 that says it has a query bias": edited(
        lambda layer: setattr(layer.encoding, "query_bias", True), encoding="t5", bias=False
    ),
    "no query bias, by hand": edited(lambda layer: setattr(layer, "in_proj_bias", None)),
    "a lie of one's own": Lying,
    "a lie that mixes": LyingWell,
    "one head": lambda: RelativeAttention(D, 1, gain=True, max_len=N),
    "causal": lambda: urpe(causal=True),
    "causal, set later": edited(_set(causal=True)),
    "positions that are frozen": lambda: AbsolutePositions(
        urpe(gain=None), N, D
    ).requires_grad_(False),
    "positions before two blocks": lambda: AbsolutePositions(urpe(TwoBlocks), N, D),
    "positions before a hook": lambda: AbsolutePositions(
        edited(lambda layer: layer.register_forward_hook(_halved))(), N, D
    ),
    "positions before a liar": lambda: AbsolutePositions(Lying(), N, D),
    "a special token before two blocks": lambda: SpecialToken(urpe(TwoBlocks), D),
    "a gain for graphs": lambda: attention_by_name(
        "graphormer+urpe", seq_len=N, embed_dim=D, num_heads=2
    ),
}


REFUSED = (
    "an index that changes", "a property instead of the gain",
    "a gain that lies where the bias does",
)  # fmt: skip
ATTENTIVE_FAILS = (
    "scale 0", "scale nan", "scale inf", "scale 1e-320", "no query bias, by hand",
    "one head", "causal", "causal, set later", "T5 that says it has a query bias",
)  # fmt: skip
"""Layers that make positions all the same."""


@pytest.mark.usefixtures("nothing_followed")
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_false_is_proved(name: str) -> None:
    """Some turn after a few runs, or have two names for one memory: these are refused."""
    try:
        report = judged(ATTACKS[name]())
    except InputError:
        assert name in REFUSED
        return
    assert report.verdict is not PROVED, str(report)
    assert report["EF005"].verdict is not PROVED or name in ATTENTIVE_FAILS, str(report)


SOUND: dict[str, Callable[[], nn.Module]] = {
    "urpe": urpe,
    "t5 and urpe": lambda: urpe(encoding="t5"),
    "two heads of keys": lambda: RelativeAttention(D, 4, kv_heads=2, gain=True, max_len=N),
    "clipped, but not too near": lambda: urpe(max_len=3, clamp=True),
    "buckets of T5": lambda: urpe(gain=ToeplitzGain(2, buckets=T5Buckets())),
    "buckets of the past alone": lambda: urpe(
        gain=ToeplitzGain(2, buckets=T5Buckets(2, 2, bidirectional=False))
    ),
    "one gain for all heads": lambda: urpe(gain=ToeplitzGain(1, N)),
    "a large scale": lambda: urpe(scale=30.0),
    "a negative scale": lambda: urpe(scale=-0.5),
    "a subclass that changes nothing": lambda: urpe(type("Same", (RelativeAttention,), {})),
    "positions": lambda: AbsolutePositions(urpe(gain=None), N, D),
}


def test_keys_that_all_heads_share() -> None:
    """The theorems have two heads with keys of their own. What is refuted stays so."""
    report = judged(RelativeAttention(D, 4, kv_heads=1, gain=True, max_len=N))
    assert report.lp.verdict is UNKNOWN
    assert "keys and values of their own" in report.lp.reason
    assert judged(RelativeAttention(D, 4, kv_heads=1)).lp.verdict is REFUTED
    said = RelativeAttention(D, 4, kv_heads=1, gain=True, max_len=N)
    said.kv_heads = 2  # more than there are: it cannot run
    with pytest.raises(InputError):
        judged(said)


@pytest.mark.rows(6)
@pytest.mark.parametrize("name", SOUND)
def test_what_is_true_is_still_proved(name: str) -> None:
    report = judged(SOUND[name]())
    assert report.verdict is PROVED, str(report)


@pytest.mark.usefixtures("nothing_followed")
@pytest.mark.parametrize("name", ["attention_weights", "scores"])
def test_a_function_that_the_forward_calls_is_replaced(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The class is the library's, what it does is not."""
    original: Any = getattr(attention_module, name)

    def uniform(*args: Any, **kwargs: Any) -> Tensor:
        found = original(*args, **kwargs)
        return torch.full_like(found, 1 / N)

    monkeypatch.setattr(attention_module, name, uniform)
    assert judged(urpe()).verdict is not PROVED


@pytest.mark.usefixtures("nothing_followed")
@pytest.mark.parametrize(
    ("cls", "name"),
    [
        *((RelativeAttention, name) for name in ("forward", "_weights", "_mixed")),
        *((RelativeAttention, name) for name in ("__call__", "spec")),
        *((SelfAttention, name) for name in ("_project", "_output", "_drops")),
    ],
)
def test_a_method_of_the_class_is_replaced(
    monkeypatch: pytest.MonkeyPatch, cls: type, name: str
) -> None:
    original: Any = getattr(cls, name)

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    monkeypatch.setattr(cls, name, replaced, raising=False)
    assert judged(urpe()).verdict is not PROVED


@pytest.fixture
def hook_on_everything() -> Iterator[None]:
    def doubled(module: nn.Module, args: Any, output: Any) -> Any:
        return 2 * output if isinstance(module, RelativeAttention) else output

    handle = nn.modules.module.register_module_forward_hook(doubled)
    yield
    handle.remove()


@pytest.mark.usefixtures("hook_on_everything")
def test_a_hook_on_all_modules() -> None:
    assert judged(urpe()).verdict is not PROVED


def test_a_subject_with_a_spec_of_ones_own() -> None:
    """Whoever makes a subject by hand declares the spec, and proves nothing."""
    subject = Subject("by hand", Lying().double(), AttentionSpec("x", gain=True), N, D)
    assert check(subject).verdict is not PROVED


def test_obstacles_are_not_proved_by_a_spec_that_is_inherited() -> None:
    """A causal class that looks ahead all the same: nothing is refuted by its spec."""

    class LooksAhead(RelativeAttention):
        def forward(self, x: Tensor, **_: Any) -> Any:
            large = (x.abs().amax((-1, -2), keepdim=True) > 9).to(x.dtype)
            return super().forward(x) + large * x.flip(-2)  # type: ignore[operator]

    report = judged(urpe(LooksAhead, causal=True))
    assert report["EF006"].verdict is not PROVED
    assert report["EF009"].verdict is not PROVED
    assert report.lp.verdict is not REFUTED


def test_frozen_numbers_are_not_drawn() -> None:
    """For a gain that is frozen at 1, equal tokens stay equal: no counterexample."""
    report = judged(edited(lambda layer: layer.gain.requires_grad_(False))())
    assert report["EF003"].verdict is not REFUTED
    assert report["EF003"].counterexample is None


def test_members_that_others_add_to_modules_count_only_where_they_are_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = RelativeAttention(4, 2, encoding="none", gain=True, max_len=4)
    monkeypatch.setattr(nn.Module, "smart_apply", print, raising=False)  # as transformers
    assert stranger(layer) == ""
    for name in ("__getattribute__", "in_proj_weight"):
        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, name, object.__getattribute__, raising=False)
            found = stranger(layer)
        assert f"Module.{name} was exchanged" in found
    with monkeypatch.context() as patch:
        patch.setattr(RelativeAttention, "_call_impl", nn.Module._call_impl, raising=False)  # pyright: ignore[reportPrivateUsage]
        found = stranger(layer)
    assert "RelativeAttention._call_impl was exchanged" in found
