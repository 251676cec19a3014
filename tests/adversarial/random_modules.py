"""Modules put together at random from the operations of torch, as lines of Python.

A program grows line by line. A line is drawn, run on random numbers, and kept if torch
accepts it and its result is small and mostly finite. So shapes need no bookkeeping, and
coincidences of sizes (n = d, n = number of heads) are common. Sizes, lines and constants
follow from the seed alone.
"""

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

F = nn.functional
LARGEST = 240
"""Entries of a tensor that is kept."""

UNARY = (
    "{a}.relu()", "{a}.tanh()", "{a}.exp()", "{a}.sigmoid()", "F.gelu({a})", "-{a}",
    "{a}.abs()", "{a}.sin()", "{a}.cos()", "{a} * 0.5", "{a} + 1", "1 - {a}", "{a} ** 2",
    "{a} ** 3.0", "{a}.clamp(min=0.1)", "{a}.clamp(-1, 1)", "({a}.abs() + 1).sqrt()",
    "({a} ** 2 + 0.1).rsqrt()", "({a}.abs() + 0.5).log()", "{a}.float().double()",
    "{a}.round()", "({a} > 0).double()", "F.elu({a})", "F.leaky_relu({a})",
    "F.dropout({a}, 0.5, False)", "{a}.clone()", "F.hardtanh({a}, 0.25, 1.0)",
    "{a}.sign()", "{a}.floor()", "{a}.reciprocal()", "{a}.abs().sqrt()",
    "torch.pow(2, {a})", "torch.pow(0, {a})", "{a}.half().double()", "{a}.long().double()",
    "F.silu({a})", "F.softplus({a})", "{a}.log1p()", "{a} * 0", "{a}.detach()",
    "{a}.nan_to_num()", "{a} // 2", "{a} % 2", "{a} * {a}", "{a} / ({a} * {a} + 0.5)",
    "torch.where({a} > 0, {a}, 0.1)", "{a}.to(torch.bool).double()", "{a}.expm1()",
    "{a} + torch.ones_like({a})", "{a} * torch.full_like({a}, 2)", "{a}.contiguous()",
)  # fmt: skip

BINARY = (
    "{a} + {b}", "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} * {b}", "{a} / {b}",
    "{a} / ({b}.abs() + 1)", "torch.maximum({a}, {b})", "torch.add({a}, {b}, alpha=-1)",
    "torch.where({a} > {b}, {a}, {b})", "torch.where({a} > 0, {b}, {a})",
    "{a}.masked_fill({b} > 0, 0.5)", "torch.lerp({a}, {b}, 0.5)", "torch.hypot({a}, {b})",
    "torch.sub({b}, {a}, alpha=2)", "torch.addcmul({a}, {b}, {b})",
)  # fmt: skip

MASKED = (
    "{a}.masked_fill({m}, -torch.inf)", "{a}.masked_fill({m}, -torch.inf).softmax(-1)",
    "{a}.masked_fill({m}, 0.0)", "{a} * {m}.double()", "torch.where({m}, {a}, 1.0)",
    "torch.where({m}, {a}, -torch.inf)", "{a}.masked_fill({m}, torch.inf)",
    "{a} + torch.zeros({m}.shape, dtype=torch.float64).masked_fill({m}, -torch.inf)",
    "{a}.masked_fill({m}, -1e9)",
    "({a} + torch.full({a}.shape[-1:], -torch.inf, dtype=torch.float64)).softmax(-1)",
)  # fmt: skip

REDUCED = (
    "{a}.sum({k}, keepdim={keep})", "{a}.mean({k}, keepdim={keep})",
    "{a}.amax({k}, keepdim={keep})", "{a}.var({k}, keepdim={keep})",
    "{a}.std({k}, keepdim={keep})", "{a}.softmax({k})", "{a}.softmax({k})",
    "{a}.log_softmax({k})", "{a}.logsumexp({k}, keepdim={keep})", "{a}.cumsum({k})",
    "{a}.var({k}, correction=0, keepdim={keep})", "{a}.sum()", "{a}.mean(({k}, {l}))",
    "{a}.var({k}, correction={size}, keepdim={keep})", "torch.sum(dim={k}, input={a})",
    "{a}.norm(dim={k}, keepdim={keep})", "{a}.amin(dim=({k},), keepdim={keep})",
)  # fmt: skip

TURNED = (
    "{a}.transpose({k}, {l})", "{a}.transpose({k}, {l})", "{a}.mT", "{a}.unsqueeze({k})",
    "{a}.squeeze()", "{a}.squeeze({k})", "{a}.movedim({k}, {l})", "{a}.flip({k})",
    "{a}.roll(1, {k})", "{a}.sort({k}).values", "{a}.flatten({k})",
    "{a}.narrow({k}, {size} // 2, 1)", "{a}.select({k}, {size} // 2)",
    "{a}.select({k}, 0).unsqueeze({k})", "{a}.chunk(2, {k})[-1]",
    "{a}.split(({size} // 2, {size} - {size} // 2), {k})[0]", "{a}.unbind({k})[0]",
    "torch.cat([{a}, {b}], {k})", "torch.cat([{a}.narrow({k}, 1, {size} - 1), "
    "{a}.narrow({k}, 0, 1)], {k})", "torch.stack([{a}, {b}], {k})",
    "{a}.diagonal(0, -2, -1)",
    "{a}.repeat_interleave(2, {k})", "{a}.index_select({k}, torch.arange({size}).flip(0))",
    "{a}.gather({k}, {a}.argsort({k}))", "{a}.topk(1, {k}).values", "{a}.tril()",
    "{a}.expand(2, *{a}.shape)", "{a}.expand({n}, *{a}.shape)", "{a}.repeat(1, 1, 2)",
    "{a}.gather({k}, torch.zeros({a}.shape, dtype=torch.int64))", "{a}.movedim(0, -1)",
    "{a}.take_along_dim({a}.argmax({k}, keepdim=True), {k})",
    "F.pad({a}, (1, 0))[..., :-1]", "torch.einsum('...ij,...kj->...ik', {a}, {b})",
    "torch.einsum('...ij,...ij->...i', {a}, {b})",
    "torch.einsum('...ij,...jk->...ki', {a}, {b})", "{a}.reshape({a}.shape[::-1])",
    "torch.cat([{a}.narrow({k}, 0, 0), {a}], {k})", "F.pad({a}, (1, -1), value=0.5)",
    "torch.cat([torch.tensor([]), {a}], {k})", "F.pad({a}, (0, 0, 2, 0))[..., :-2, :]",
    "F.pad({a}, (0, 0, 1, -1))", "{a}.cumsum({k}).flip({k})", "{a}.repeat(1, 2, 1)[:, ::2]",
    "torch.stack({a}.unbind({k})[::-1], {k})", "{a}[..., torch.tensor([0, -1]), :]",
    "torch.stack([row * 2 for row in {a}.unbind({k})], {k})",
    "torch.cat([{a}.narrow({k}, 0, 1), {a}.narrow({k}, 0, {size} - 1)], {k})",
)  # fmt: skip

NORMED = (
    "F.layer_norm({a}, {a}.shape[-1:])", "F.layer_norm({a}, {a}.shape[-2:])",
    "F.layer_norm({a}, {a}.shape[-1:], {w}, {c})", "F.layer_norm({a}, {a}.shape[-1:], {w})",
    "F.rms_norm({a}, {a}.shape[-1:], eps=0.01)", "F.normalize({a}, dim=-1)",
    "F.group_norm({a}, 1)", "F.batch_norm({a}, None, None, training=True)",
    "F.layer_norm({a}, {a}.shape[-1:], eps=0.0)", "F.prelu({a}, {w}.mean())",
    "F.batch_norm({a}.mT, None, None, training=True).mT", "F.glu({a}, -1)",
)  # fmt: skip

WRITTEN = (
    "{v} = {a}.clone(); {v}[:, 1:] *= 2", "{v} = {a}.clone(); {v}[:, 0] = 0",
    "{v} = {a}.clone(); {v} += {b}", "{v} = {a}.clone(); {v}[..., 0] += 1",
    "{v} = {a}.clone(); {v}.mT.mul_(0.5)", "{v} = {a}.clone(); {v}[:, ::2] = {b}[:, ::2]",
    "{v} = {a} * 1; {v}.transpose(0, 1)[0] += 1", "{v} = {a} * 1; {v}.relu_()",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A map of tokens (1, n, d) to tokens, as lines of Python.

    Attributes:
        n: Tokens.
        d: Their width.
        lines: Assignments to v0, v1, ..; x are the tokens and w.p0, w.b0, .. weights.
        result: The name of the output.
        weights: Shapes of the weights; p* are parameters, b* buffers.
    """

    n: int
    d: int
    lines: tuple[str, ...]
    result: str
    weights: dict[str, tuple[int, ...]]

    @property
    def source(self) -> str:
        """The function forward(w, x)."""
        body = "".join(f"    {line}\n" for line in (*self.lines, f"return {self.result}"))
        return f"def forward(w, x):\n{body}"

    def __str__(self) -> str:
        """The source, with the sizes of everything."""
        return f"# x: (1, {self.n}, {self.d}), weights: {self.weights}\n{self.source}"

    def module(self, seed: int = 0) -> nn.Module:
        """It, with weights drawn from a seed."""
        return Made(self, seed)


class Made(nn.Module):
    """A program as a module."""

    def __init__(self, program: Program, seed: int = 0) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(seed)
        same = torch.Generator().manual_seed(0)  # buffers are not weights
        for name, shape in program.weights.items():
            if name.startswith("p"):
                drawn = torch.randn(shape, generator=source, dtype=torch.float64)
                self.register_parameter(name, nn.Parameter(drawn))
            else:
                drawn = torch.randn(shape, generator=same, dtype=torch.float64)
                self.register_buffer(name, drawn)
        names: dict[str, Any] = {"torch": torch, "F": F}
        exec(program.source, names)
        self.made: Callable[..., torch.Tensor] = names["forward"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.made(self, x)


@dataclass
class _Growing:
    """A program that grows, with the value of every name on one random input."""

    rng: random.Random
    n: int
    d: int
    lines: list[str] = field(default_factory=list[str])
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    values: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    latest: str = ""
    rough: bool = False

    def __post_init__(self) -> None:
        self.source = torch.Generator().manual_seed(self.rng.randrange(2**30))
        self.values["x"] = self.draw((1, self.n, self.d))

    def draw(self, shape: Sequence[int]) -> torch.Tensor:
        return torch.randn(*shape, generator=self.source, dtype=torch.float64)

    def weight(self, *shape: int) -> str:
        """A new parameter or, now and then, a buffer."""
        name = f"{self.rng.choice('pppb')}{len(self.weights)}"
        self.weights[name] = shape
        self.values[f"w.{name}"] = self.draw(shape)
        return f"w.{name}"

    def pick(self, accepts: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """A name, the newest ones most often; x if none is accepted."""
        if self.latest in self.values and accepts(self.values[self.latest]):
            name, self.latest = self.latest, ""
            return name
        names = [name for name, value in self.values.items() if accepts(value)] or ["x"]
        recent = names[-4:] if self.rng.random() < 0.7 else names
        return self.rng.choice(recent)

    def add(self, line: str) -> str | None:
        """Keep a line if its result is fit to go on with; the name of its result."""
        name = f"v{len(self.lines)}"
        line = line.replace("{v}", name)
        if not line.startswith(f"{name} = "):
            line = f"{name} = {line}"
        scope: dict[str, Any] = {"torch": torch, "F": F, "w": _Weights(self.values)}
        scope |= {k: v.clone() for k, v in self.values.items() if not k.startswith("w.")}
        try:
            exec(line, scope)
        except (RuntimeError, IndexError, TypeError, ValueError, AttributeError, NameError):
            return None
        found = scope[name]
        if not self._is_fit(found):
            return None
        self.lines.append(line)
        self.values[name] = found
        return name

    def _is_fit(self, found: Any) -> bool:
        if not isinstance(found, torch.Tensor) or found.dtype != torch.float64:
            return False
        if not 0 < found.numel() <= LARGEST or found.ndim > 5:
            return False
        if bool((found == torch.inf).any() | found.isnan().any()):
            return self.rough
        finite = found[found.isfinite()]
        return not finite.numel() or float(finite.abs().max()) < 1e4

    def begin(self, theme: str) -> str:
        """One line of a form, on operands that fit; what follows is made of it first.

        If it has no finite result, other numbers are accepted from here on.
        """
        for attempt in range(40):
            self.rough = self.rough or attempt >= 20
            a = self.pick(lambda t: t.ndim >= 2)
            rows, columns = self.values[a].shape[-2:]
            parts = {**self._dims(a), "b": self.pick(), "m": self.mask(rows, columns)}
            if "{w}" in theme:
                parts |= {"w": self.weight(columns), "c": self.weight(columns)}
            found = self.add(theme.format(**parts, v="{v}"))
            if found:
                self.latest = found
                return found
        return "x"

    def grow(self) -> str | None:
        """One more line, or those of a block of attention."""
        kinds = (
            self._unary, self._binary, self._binary, self._masked, self._reduced,
            self._turned, self._turned, self._reshaped, self._normed, self._written,
            self._product, self._product, self._linear, self._linear, self._constant,
            self._weighted, self._fused, self._block, self._sliced, self._sliced,
            self._convolved, self._grouped,
        )  # fmt: skip
        return self.rng.choice(kinds)()

    def _unary(self) -> str | None:
        return self.add(self.rng.choice(UNARY).format(a=self.pick()))

    def _binary(self) -> str | None:
        return self.add(self.rng.choice(BINARY).format(a=self.pick(), b=self.pick()))

    def mask(self, rows: int, columns: int) -> str:
        """Known booleans."""
        size = f"torch.ones({rows}, {columns}, dtype=torch.bool)"
        drawn = [[self.rng.random() < 0.3 for _ in range(columns)] for _ in range(rows)]
        k = self.rng.randint(-1, 1)
        kinds = (f"{size}.triu({k})", f"{size}.triu(1)", f"{size}.tril({k})")
        more = (f"torch.tensor({drawn})", f"torch.eye({rows}, {columns}).bool()")
        first = f"torch.eye({rows}, 1).bool().expand({rows}, {columns})"
        return self.rng.choice((*kinds, *more, first, f"~{size}"))

    def _masked(self) -> str | None:
        a = self.pick(lambda t: t.ndim >= 2)
        rows, columns = self.values[a].shape[-2:]
        return self.add(self.rng.choice(MASKED).format(a=a, m=self.mask(rows, columns)))

    def _dims(self, a: str) -> dict[str, Any]:
        rank = max(self.values[a].ndim, 1)
        k, other = self.rng.randrange(rank), self.rng.randrange(rank)
        rows = [dim for dim, size in enumerate(self.values[a].shape) if size == self.n]
        k = self.rng.choice(rows) if rows and self.rng.random() < 0.8 else k
        size = self.values[a].shape[k] if self.values[a].ndim else 1
        keep = self.rng.random() < 0.6
        turned = self.rng.choice((k, k - rank))
        return {"a": a, "k": turned, "l": other, "size": size, "keep": keep, "n": self.n}

    def _reduced(self) -> str | None:
        return self.add(self.rng.choice(REDUCED).format(**self._dims(self.pick())))

    def _turned(self) -> str | None:
        a = self.pick(lambda t: t.ndim >= 1)
        return self.add(self.rng.choice(TURNED).format(**self._dims(a), b=self.pick()))

    def _reshaped(self) -> str | None:
        """The same entries in another shape: factors in some order, some merged."""
        a = self.pick()
        left, factors = self.values[a].numel(), list[int]()
        while left > 1:
            divisors = [k for k in range(2, left + 1) if left % k == 0]
            sizes = [k for k in divisors if k in (self.n, self.d, 2)] or divisors
            factors.append(self.rng.choice(sizes))
            left //= factors[-1]
        if self.rng.random() < 0.3:
            factors.insert(self.rng.randint(0, len(factors)), 1)
        return self.add(f"{a}.reshape({factors})")

    def _normed(self) -> str | None:
        a = self.pick(lambda t: t.ndim >= 2)
        width = self.values[a].shape[-1]
        form = self.rng.choice(NORMED)
        w = self.weight(width) if "{w}" in form else ""
        c = self.weight(width) if "{c}" in form else ""
        return self.add(form.format(a=a, w=w, c=c))

    def _written(self) -> str | None:
        form = self.rng.choice(WRITTEN)
        return self.add(form.format(a=self.pick(), b=self.pick(), v="{v}"))

    def _product(self) -> str | None:
        a = self.pick(lambda t: t.ndim >= 2)
        inner = self.values[a].shape[-1]
        b = self.pick(lambda t: t.ndim >= 2 and t.shape[-2] == inner)
        if self.rng.random() < 0.4:
            b = f"{self.pick(lambda t: t.ndim >= 2 and t.shape[-1] == inner)}.mT"
        return self.add(f"{a} @ {b}")

    def _linear(self) -> str | None:
        a = self.pick(lambda t: t.ndim >= 2)
        width = self.rng.choice((self.d, self.d, self.n, 2))
        W = self.weight(width, self.values[a].shape[-1])
        b = f", {self.weight(width)}" if self.rng.random() < 0.4 else ""
        return self.add(f"F.linear({a}, {W}{b})")

    def _constant(self) -> str | None:
        n, d = self.n, self.d
        kinds = (
            f"torch.linspace(-1, 1, {n}, dtype=torch.float64)[:, None]",
            f"torch.ones({n}, {d}, dtype=torch.float64)",
            f"torch.eye({n}, dtype=torch.float64)",
            f"torch.arange({d}).double()",
            f"torch.full(({n}, {n}), 1 / {n}, dtype=torch.float64)",
            f"F.embedding(torch.arange({n}) % 2, {self.weight(2, d)})",
            f"F.embedding((x[..., 0] > 0).long(), {self.weight(2, d)})",
        )
        return self.add(self.rng.choice(kinds))

    def _convolved(self) -> str | None:
        """A convolution along the tokens, or across them, padded on one side or both."""
        a = self.pick(lambda t: t.ndim == 3)
        turned = self.rng.random() < 0.8
        sizes = self.values[a].shape
        channels = sizes[-1 if turned else -2]
        taps, gap = self.rng.choice((1, 1, 2, 3)), self.rng.choice((1, 1, 2))
        groups = self.rng.choice((1, channels))
        W = self.weight(channels, channels // groups, taps)
        b = self.weight(channels) if self.rng.random() < 0.4 else "None"
        before, after = (self.rng.choice((0, (taps - 1) * gap)) for _ in range(2))
        given = f"{a}.mT" if turned else a
        given = f"F.pad({given}, ({before}, {after}))" if self.rng.random() < 0.6 else given
        more = f"padding={self.rng.choice((0, 1))}, stride={self.rng.choice((1, 1, 1, 2))}"
        found = f"F.conv1d({given}, {W}, {b}, {more}, dilation={gap}, groups={groups})"
        cut = f"[..., :{sizes[-2 if turned else -1]}]" if self.rng.random() < 0.5 else ""
        return self.add(f"({found}{cut}){'.mT' if turned else ''}")

    def _grouped(self) -> str | None:
        """Attention with fewer heads of keys and values than of queries."""
        n, d = self.n, self.d
        a = self.pick(lambda t: t.shape == (1, n, d))
        heads, shared = self.rng.choice(((2, 1), (4, 2), (3, 1), (4, 1)))
        names: list[str] = []
        for count in (heads, shared, shared):
            made = f"F.linear({a}, {self.weight(2 * count, d)})"
            names.append(f"{made}.view(1, {n}, {count}, 2).transpose(1, 2)")
        option = self.rng.choice(
            ("", ", is_causal=True", f", attn_mask=~{self.mask(n, n)}")
        )
        return self.add(
            f"F.scaled_dot_product_attention({', '.join(names)}{option}, enable_gqa=True)"
            f".transpose(1, 2).reshape(1, {n}, {2 * heads})"
        )

    def _weighted(self) -> str | None:
        """A weight that meets some tensor, with copies along some dimensions."""
        a = self.pick(lambda t: t.ndim >= 1)
        sizes = self.values[a].shape[self.rng.randrange(self.values[a].ndim) :]
        w = self.weight(*(1 if self.rng.random() < 0.3 else size for size in sizes))
        return self.add(f"{a} {self.rng.choice('+*')} {w}")

    def _sliced(self) -> str | None:
        a = self.pick(lambda t: t.ndim >= 2)
        dims = self.values[a].ndim
        own = self.rng.randrange(dims)
        parts = [":"] * dims
        parts[own] = self.rng.choice(
            ("0", "-1", "1:", ":1", ":-1", "::2", "[1, 0]", "None")
        )
        return self.add(f"{a}[{', '.join(parts)}]")

    def _fused(self) -> str | None:
        """torch's attention, with its options."""
        q = self.pick(lambda t: t.ndim >= 3)
        width, batch = self.values[q].shape[-1], self.values[q].shape[:-2]
        k = self.pick(lambda t: t.shape[:-2] == batch and t.shape[-1:] == (width,))
        if self.values[k].ndim < 3:
            return None
        keys = self.values[k].shape[-2]
        v = self.pick(lambda t: t.ndim >= 3 and t.shape[:-1] == (*batch, keys))
        queries = self.values[q].shape[-2]
        mask = self.mask(queries, keys)
        options = (
            "", "", ", is_causal=True", f", attn_mask=~{mask}",
            ", scale=0.3", ", scale=0.0",
            f", attn_mask={self.weight(queries, keys)}", ", enable_gqa=True",
            f", attn_mask=torch.zeros({queries}, {keys}, dtype=torch.float64)"
            f".masked_fill({mask}, -torch.inf)",
        )  # fmt: skip
        return self.add(
            f"F.scaled_dot_product_attention({q}, {k}, {v}{self.rng.choice(options)})"
        )

    def _block(self) -> str | None:
        """A block of attention as people write it, with one place to go wrong."""
        n, d = self.n, self.d
        a = self.pick(lambda t: t.shape == (1, n, d))
        heads = self.rng.choice([h for h in range(1, d + 1) if d % h == 0])
        flaw = self.rng.choice(
            ("", "", "bias", "gain", "values", "axis", "causal", "causal", "mask", "swap")
        )
        names: list[str | None] = []
        for _ in range(3):
            y = self.add(f"F.linear({a}, {self.weight(d, d)})")
            split = f"{y}.view(1, {n}, {heads}, {d // heads}).transpose(1, 2)"
            names.append(self.add(split) if y else None)
        q, k, v = names
        if flaw == "values":
            v = self.add(f"{v} + {self.weight(n, 1)}")
        scores = self.add(f"{q} @ {k}.mT * {(d // heads) ** -0.5}")
        if flaw == "bias":
            scores = self.add(f"{scores} + {self.weight(heads, n, n)}")
        if flaw in ("causal", "mask"):
            mask = f"torch.ones({n}, {n}, dtype=torch.bool).triu(1)"
            mask = mask if flaw == "causal" else self.mask(n, n)
            scores = self.add(f"{scores}.masked_fill({mask}, -torch.inf)")
        A = self.add(f"{scores}.softmax({-2 if flaw == 'axis' else -1})")
        if flaw == "gain":
            A = self.add(f"{A} * {self.weight(n, n)}")
        mixed = self.add(f"{A}{'.mT' if flaw == 'swap' else ''} @ {v}")
        out = self.add(f"{mixed}.transpose(1, 2).reshape(1, {n}, {d})")
        return self.add(f"{a} + {out}") if self.rng.random() < 0.6 else out

    def finish(self) -> str | None:
        """A name of shape (1, n, d): the newest, or made of the newest."""
        n, d = self.n, self.d
        if self.values[f"v{len(self.lines) - 1}"].shape == (1, n, d):
            return f"v{len(self.lines) - 1}"
        name = f"v{len(self.lines) - 1}"
        shape = self.values[name].shape
        ways = ["{a}.reshape(1, {n}, {d})", "x + {a}", "x * {a}", "{a}.expand(1, {n}, {d})"]
        self.rng.shuffle(ways)
        if shape[-2:] == (n, n):
            ways.insert(0, "({a} @ x).reshape(-1, {n}, {d})[:1]")
        if shape[:-1] == (1, n):
            ways.insert(0, f"F.linear({{a}}, {self.weight(d, shape[-1])})")
        for way in ways:
            found = self.add(way.format(a=name, n=n, d=d))
            if found and self.values[found].shape == (1, n, d):
                return found
        return self.pick(lambda t: t.shape == (1, n, d))


class _Weights:
    """Weights under their names."""

    def __init__(self, values: dict[str, torch.Tensor]) -> None:
        for name, value in values.items():
            if name.startswith("w."):
                setattr(self, name[2:], value.clone())


def sizes(rng: random.Random) -> tuple[int, int]:
    """n and d, often equal or one a multiple of the other."""
    n = rng.randint(2, 5)
    return n, rng.choice((1, 2, 3, 4, 4, 6, n, n, 2 * n))


FUSED = tuple(
    f"F.scaled_dot_product_attention({{a}}, {{a}}, {{a}}{option})"
    for option in (", is_causal=True", ", attn_mask={m}", ", attn_mask=~{m}", ", scale=2.0")
)
ON_ENTRIES = (*UNARY, *BINARY, *NORMED)
ON_PLACES = (*TURNED, *REDUCED, *MASKED, *FUSED, *WRITTEN)


def draw_program(seed: int, n: int, d: int) -> Program:
    """The program of a seed: some lines, of which the output needs each.

    It begins with the operation whose turn it is, so that none is rare.
    """
    rng = random.Random(f"{seed} {n} {d}")
    themes = ON_PLACES if seed % 2 else ON_ENTRIES
    theme = themes[seed // 2 % len(themes)]
    for attempt in itertools.count():
        growing = _Growing(rng, n, d, rough=rng.random() < 0.1)
        if rng.random() < 0.5:
            growing.grow()
        first = growing.begin(theme)
        wanted = len(growing.lines) + rng.randint(1, 3)
        for _ in range(200):
            if len(growing.lines) >= wanted:
                break
            growing.grow()
        result = growing.finish()
        if not result or result == "x":
            continue
        found = trimmed(Program(n, d, tuple(growing.lines), result, growing.weights))
        if attempt >= 9 or any(line.startswith(f"{first} = ") for line in found.lines):
            return found
    raise AssertionError("the count has no end")


def trimmed(program: Program) -> Program:
    """Without lines that its result does not need."""
    needed, kept = {program.result}, list[str]()
    for line in reversed(program.lines):
        name = line.split(" = ")[0]
        if name in needed:
            kept.append(line)
            needed |= set(_names(line))
    weights = {k: v for k, v in program.weights.items() if f"w.{k}" in needed}
    return Program(program.n, program.d, tuple(reversed(kept)), program.result, weights)


def _names(line: str) -> list[str]:
    return re.findall(r"w\.[pb]\d+|v\d+", line)
