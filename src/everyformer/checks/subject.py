"""What is checked: a module that maps tokens to tokens, and what it says of itself."""

import copy
import gc
import io
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from everyformer.checks.aliases import refuse_aliases
from everyformer.checks.calling import Layout, call
from everyformer.checks.following.contents import fingerprint
from everyformer.checks.following.walk import Followed, follow
from everyformer.checks.layouts import (
    BATCH_FIRST,
    LAYOUTS,
    Reading,
    reading_of,
)
from everyformer.checks.mixing import mixing_matrices
from everyformer.checks.precision import FINE, ISOLATED, coarseness, isolated, violated
from everyformer.checks.redrawing import given_weights, redrawn, unused
from everyformer.errors import InputError
from everyformer.model.attention_spec import AttentionSpec
from everyformer.model.own_classes import Description, described
from everyformer.numerics.limits import check_integer, shown
from everyformer.targets.target import MAX_SIZE

LARGEST_BATCH = 2**19
"""Pairs of tokens in all sequences that are run at once."""

LARGEST_RUN = 2**19
"""Numbers in all sequences that are run at once; larger batches take no less time."""

LARGE = 2**24
"""Numbers of a module whose copies are not left lying about."""

LARGEST_DRAWN = 2**28
"""Numbers of all copies with other weights that are kept until the check ends."""

Known = dict[tuple[str, bytes], np.ndarray]


@dataclass(frozen=True)
class Trial:
    """A module with one choice of weights.

    Attributes:
        module: The module.
        seed: What the weights were drawn from; None for those it came with.
        reading: How it is fed.
        known: What was measured before, by what was measured and on which input.
        fresh: Whether every run is the first one of a copy of the module.
        doubted: With `fresh`: what was measured on a copy that had been run before.
    """

    module: nn.Module
    seed: int | None
    reading: Reading = BATCH_FIRST
    known: Known = field(default_factory=dict, repr=False, compare=False)
    fresh: bool = False
    doubted: Known = field(default_factory=dict, repr=False, compare=False)

    def output(self, X: np.ndarray) -> np.ndarray:
        """g(X), both of shape (n, d)."""
        return self.once("output", X, lambda: self._run(X[None])[0])

    def outputs(self, sequences: np.ndarray) -> np.ndarray:
        """g of many sequences, both of shape (count, n, d).

        As one batch, where the first and the last are what they are alone.
        """
        count, n, d = sequences.shape
        size = max(1, min(LARGEST_BATCH // n**2, LARGEST_RUN // (n * d)))
        if self.reading.batched and size > 1:
            parts = np.split(sequences, range(size, count, size))
            found = np.concatenate([self._run(part) for part in parts])
            ends = [k for k in {0, count - 1} if not self._is_alone(found[k], sequences[k])]
            if not ends:
                return found
        return np.stack([self.output(X) for X in sequences])

    def matrices(self, X: np.ndarray) -> list[np.ndarray]:
        """The matrices A that multiply the values, each (n, n), as far as they are seen."""
        with torch.no_grad():
            fed = partial(call, layout=self.reading.layout)
            found = mixing_matrices(self._run_on, _batch(X[None]), fed)
            return [A.double().numpy() for A in found]

    def once(
        self, what: str, X: np.ndarray, measure: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """What is measured on an input, by the rule that asks first."""
        key = _key(what, X)
        if key not in self.known:
            self.known[key] = measure()
        return self.known[key].copy()

    def believed(self, what: str, X: np.ndarray) -> np.ndarray | None:
        """What was measured on a copy that had been run before, if anything was."""
        return self.doubted.get(_key(what, X))

    @property
    def _run_on(self) -> nn.Module:
        return unused(self.module) if self.fresh else self.module

    def _run(self, sequences: np.ndarray) -> np.ndarray:
        try:
            with torch.no_grad():
                return call(self._run_on, _batch(sequences), self.reading.layout).numpy()
        except Exception as error:
            msg = (
                f"{type(self.module).__name__} failed on {len(sequences)} sequences of "
                f"shape {sequences.shape[1:]}, weights drawn from seed {self.seed}: "
                f"{type(error).__name__}: {str(error).strip()[:300]}. It must run on all "
                "inputs, with all weights."
            )
            raise InputError(msg) from error

    def _is_alone(self, found: np.ndarray, X: np.ndarray) -> bool:
        alone = self.output(X)
        size = max(1.0, float(np.abs(np.nan_to_num(alone)).max()))
        return np.allclose(
            found, alone, rtol=0, atol=self.reading.isolated * size, equal_nan=True
        )


@dataclass(frozen=True)
class Subject:
    """A module to check, at one length and width.

    Attributes:
        name: What it is called in reports.
        module: The module in float64, not in training; None if only a spec is known. Only
            copies of it are run, since it may keep what it makes in a run.
        spec: What it says of itself, for all weights; None for a black box.
        seq_len: n.
        d_model: d.
        doubt: Why its spec does not count for the module; "" where it does.
        reading: How the module is fed.
        feed_forward: Whether stacks have feed-forward layers, too.
        eps: Of the coarsest numbers that the module computes with.
    """

    name: str
    module: nn.Module | None
    spec: AttentionSpec | None
    seq_len: int
    d_model: int
    doubt: str = "its spec was not checked against the module"
    reading: Reading = BATCH_FIRST
    feed_forward: bool = True
    eps: float = FINE

    @classmethod
    def of(
        cls,
        module: nn.Module,
        seq_len: int,
        d_model: int,
        name: str | None = None,
        layout: str = "auto",
    ) -> "Subject":
        """Take a module that maps (batch, n, d) or (n, batch, d) to the same shape.

        Args:
            module: The module.
            seq_len: n.
            d_model: d.
            name: What it is called in reports.
            layout: "batch_first", "tokens_first", or "auto" to find out.

        Raises:
            InputError: If it does not.
        """
        check_sizes(seq_len, d_model)
        if not isinstance(module, nn.Module):
            raise InputError(_not_a_module(module, seq_len, d_model))
        if "_orig_mod" in dict(module.named_children()):  # what torch.compile returns
            msg = "a compiled module was given, which cannot be followed. Check the module "
            raise InputError(f"{msg}that was compiled: module._orig_mod.")
        _refuse_unmade(module)
        refuse_aliases(module, partial(_run_somehow, n=seq_len, d=d_model))
        try:
            own = copy.deepcopy(module).double().train().eval()  # drops what eval() keeps
            for part in own.modules():
                if getattr(part, "implementation", None) == "auto":
                    part.implementation = "reference"  # type: ignore[assignment]
        except Exception as error:
            msg = f"{type(module).__name__} cannot be copied to float64: {error}"
            raise InputError(f"{msg}. Give a module that can.") from error
        used = copy.deepcopy(own)
        eps = _refuse_randomness(used, seq_len, d_model)
        _refuse_memory(own, used, seq_len, d_model, isolated(eps))
        unrun = redrawn(own, 0)
        other = partial(_copied, unrun)
        reading = reading_of(used, seq_len, d_model, other, layout, isolated(eps))
        said = _described(module, own, seq_len)
        about = (name or type(module).__name__, own, said.spec, seq_len, d_model)
        found = cls(*about, said.doubt, reading, eps=eps)
        if _numbers(unrun) <= LARGEST_DRAWN:
            vars(found).update(unrun=unrun)
        return found

    @property
    def violated(self) -> float:
        """A violation beyond this, relative to the output, is not rounding."""
        return violated(self.eps)

    @property
    def structure(self) -> AttentionSpec | None:
        """The spec, where it counts: for a spec alone, or the library's own layers."""
        return None if self.doubt and self.module is not None else self.spec

    @cached_property
    def followed(self) -> Followed:
        """What its operations imply for all weights."""
        if self.module is None:
            return Followed(None, obstacle="no module was given")
        x = torch.zeros(1, self.seq_len, self.d_model, dtype=torch.float64)
        used = copy.deepcopy(self.module)
        changed = changes_itself(used, x, self.reading.layout)
        if changed:
            why = f"every run changes its {changed}, so one run does not tell of others"
            return Followed(None, obstacle=why)
        try:
            others = given_weights(self.module, 0, vars(self).pop("unrun", None))
        except Exception as error:
            why = f"it cannot load its own weights: {type(error).__name__}: {error}"
            return Followed(None, obstacle=why[:200])
        with _quiet():
            feed = partial(call, layout=self.reading.layout)
            found = follow(used, feed, x, others)
        self._keep(0, others[0])
        del used, others
        if _numbers(self.module) > LARGE:
            gc.collect()  # an export holds its module in a cycle
        return found

    def not_followed(self, why: str) -> "Subject":
        """The same subject, whose operations are not to be believed."""
        again = replace(self)
        stopped = Followed(None, obstacle=why)
        vars(again).update(followed=stopped, known=self.known, drawn=self.drawn)
        return again

    def doubted(self, why: str) -> "Subject":
        """The same subject, whose spec is not to be believed."""
        again = replace(self, doubt=why)
        kept = ("followed", "known", "drawn")
        vars(again).update({key: vars(self)[key] for key in kept if key in vars(self)})
        return again

    @cached_property
    def known(self) -> dict[int | None, Known]:
        """What was measured with which weights."""
        return {}

    @cached_property
    def known_alone(self) -> dict[int | None, Known]:
        """The same, of sequences that a copy was run on first."""
        return {}

    @cached_property
    def as_given(self) -> nn.Module:
        """A copy with the weights it came with, to be run."""
        return copy.deepcopy(_there(self.module))

    def trials(self, count: int, seed: int) -> Iterator[Trial]:
        """The module as it came, then with weights drawn anew."""
        if self.module is None or count < 1:
            return
        yield self.redrawn(None)
        for k in range(count - 1):
            yield self.redrawn(seed + k)

    @cached_property
    def drawn(self) -> dict[int, nn.Module]:
        """The module with the weights of the first seeds, so that rules share them."""
        return {}

    def _drawn(self, seed: int) -> nn.Module:
        """The module with weights drawn from a seed, kept where there is room."""
        if seed in self.drawn:
            return self.drawn[seed]
        unrun = vars(self).get("unrun") if seed == 0 else None
        own = copy.deepcopy(unrun) if unrun else redrawn(_there(self.module), seed)
        self._keep(seed, own)
        return own

    def _keep(self, seed: int, own: nn.Module) -> None:
        if _numbers(own) * (1 + len(self.drawn)) <= LARGEST_DRAWN:
            self.drawn.setdefault(seed, own)

    def redrawn(self, seed: int | None) -> Trial:
        """The module with weights drawn from a seed: tables, gains and biases too."""
        own = self.as_given if seed is None else self._drawn(seed)
        return Trial(own, seed, self.reading, self.known.setdefault(seed, {}))

    def alone(self, seed: int | None) -> Trial:
        """The same, where every sequence is the first that a copy of the module sees.

        What a batch does, or what an earlier run has left, then has no influence.
        """
        reading = replace(self.reading, batched=False)
        known = self.known_alone.setdefault(seed, {})
        own = _there(self.module)
        own = own if seed is None else redrawn(own, seed)
        before = self.known.setdefault(seed, {})
        return Trial(own, seed, reading, known, fresh=True, doubted=before)


def _copied(module: nn.Module, *_: object) -> nn.Module:
    return copy.deepcopy(module)


def _numbers(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _key(what: str, X: np.ndarray) -> tuple[str, bytes]:
    return what, np.ascontiguousarray(X).tobytes()


def _there(module: nn.Module | None) -> nn.Module:
    assert module is not None, "specs alone have no weights"  # noqa: S101
    return module


def check_sizes(seq_len: int, d_model: int) -> None:
    """Refuse sizes that cannot be checked.

    Raises:
        InputError: If n < 2 or d < 1, or one of them is beyond 2^20.
    """
    check_integer("seq_len", seq_len, 0)
    check_integer("d_model", d_model, 0)
    if max(seq_len, d_model) > MAX_SIZE:
        sizes = f"n = {shown(seq_len)}, d = {shown(d_model)}"
        raise InputError(f"{sizes}: at most {MAX_SIZE:,} can be checked. Use fewer.")
    if seq_len < 2 or d_model < 1:
        msg = (
            f"n = {seq_len}, d = {d_model}: one token has no order and no context, so "
            "there is nothing to check. Use n >= 2 and d >= 1."
        )
        raise InputError(msg)


def _described(module: nn.Module, own: nn.Module, seq_len: int) -> Description:
    """What a module says of itself: the copy that is run, and the one that was given."""
    given, copied = described(module, seq_len), described(own, seq_len)
    if type(module) is not type(own):
        return replace(copied, doubt=f"its copy is of class {type(own).__name__}")
    spec = copied.spec
    if spec is not None and given.spec is not None:  # a copy parts what shares memory
        fixed = dict.fromkeys((*spec.fixed, *given.spec.fixed))
        spec = replace(spec, fixed=tuple(fixed))
    return Description(spec, given.doubt or copied.doubt)


def _refuse_unmade(module: nn.Module) -> None:
    """Refuse a module with weights that its first run is to make.

    Raises:
        InputError: If there is one.
    """
    for name, held in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(held):
            msg = f"{type(module).__name__}: {name} has no numbers yet"
            raise InputError(f"{msg}, since no run has made it. Run it once.")


def _refuse_randomness(module: nn.Module, n: int, d: int) -> float:
    """Refuse a module that is not a function of the numbers it is given.

    Returns:
        The eps of the coarsest numbers that it computes with.

    Raises:
        InputError: If two runs on one input differ, be it with gradients, or with the
            numbers laid out in memory in another way.
    """
    probe = _batch(np.linspace(-1, 1, n * d).reshape(1, n, d))
    worst = FINE
    recorded = cache(lambda: copy.deepcopy(module))  # it may keep what has a history
    for layout in LAYOUTS:
        try:
            with torch.no_grad():
                found, again = (call(module, probe.clone(), layout) for _ in range(2))
        except Exception:
            continue
        same = found.shape == again.shape
        if not same or not torch.equal(found.nan_to_num(), again.nan_to_num()):
            msg = (
                f"{type(module).__name__} gives different outputs for the same input, so "
                "nothing can be said of it. Remove its randomness or its state."
            )
            raise InputError(msg)
        eps = coarseness(module, probe, layout)
        worst = max(worst, eps)
        for how, run in _ways(module, recorded, probe, layout):
            try:
                again = run()
            except Exception:
                continue
            if not _is_close(found, again, isolated(eps)):
                msg = (
                    f"{type(module).__name__} gives another output for the same numbers "
                    f"{how}, so nothing can be said of it. Let it go by its input alone."
                )
                raise InputError(msg)
    return worst


def _run_somehow(module: nn.Module, n: int, d: int) -> torch.Tensor:
    """A run in the type of the module, as it is given."""
    kinds = [one.dtype for one in module.parameters() if one.is_floating_point()]
    x = torch.zeros(1, n, d, dtype=kinds[0] if kinds else torch.float32)
    with torch.no_grad():
        try:
            return call(module, x, "batch_first")
        except Exception:
            return call(module, x, "tokens_first")


def _refuse_memory(
    fresh: nn.Module, used: nn.Module, n: int, d: int, tolerance: float
) -> None:
    """Refuse a module that keeps something of the tokens of an earlier run.

    Raises:
        InputError: If a copy that was run on another input gives another output.
    """
    probe = _batch(np.cos(np.arange(n * d)).reshape(1, n, d))
    for layout in LAYOUTS:
        try:
            with torch.no_grad():
                first, later = (
                    call(one, probe.clone(), layout) for one in (copy.deepcopy(fresh), used)
                )
        except Exception:
            continue
        if not _is_close(first, later, tolerance):
            msg = (
                f"{type(fresh).__name__} gives another output after a run on another "
                "input, so nothing can be said of it. Let it keep nothing of its tokens."
            )
            raise InputError(msg)


def _ways(
    module: nn.Module,
    recorded: Callable[[], nn.Module],
    probe: torch.Tensor,
    layout: Layout,
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Other ways to give a module the same numbers; gradients are for a copy of it."""

    def with_gradients() -> torch.Tensor:
        with torch.enable_grad():
            given = probe.clone().requires_grad_() * 1
            return call(recorded(), given, layout).detach()

    def strided() -> torch.Tensor:
        with torch.no_grad():
            return call(module, probe.mT.contiguous().mT, layout)

    yield "where gradients are recorded", with_gradients
    yield "with other strides", strided


def _is_close(one: torch.Tensor, two: torch.Tensor, tolerance: float = ISOLATED) -> bool:
    if one.shape != two.shape:
        return False
    size = float(one.nan_to_num().abs().max().clamp(min=1.0))
    return torch.allclose(one, two, rtol=0, atol=tolerance * size, equal_nan=True)


def changes_itself(module: nn.Module, x: torch.Tensor, layout: Layout) -> str:
    """The attribute that every forward changes; "" if nothing does.

    What is made in the first run and kept, such as a mask, is not a state, nor is what is
    the same after each run on the same input, such as weights kept to be looked at.
    """
    with torch.no_grad():
        call(module, x.clone(), layout)
        before = fingerprint(module)
        call(module, x.clone(), layout)
        after = fingerprint(module)
    changed = [key for key in after if before.get(key) != after[key]]
    return min(changed, default="")


def _not_a_module(given: object, n: int, d: int) -> str:
    if isinstance(given, str):
        return (
            f"{given!r} is a name, but check takes a module. Run `everyformer check "
            f"{given} -n {n} -d {d}`, or make the module: from everyformer.layers.by_name "
            f"import attention_by_name; attention_by_name({given!r}, seq_len={n}, "
            f"embed_dim={d}, num_heads=2)."
        )
    return f"{type(given).__name__} is not a torch.nn.Module. Give an instance of one."


@contextmanager
def _quiet() -> Generator[None]:
    """Without what torch.export logs and prints of a module that it cannot follow."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _batch(sequences: np.ndarray) -> torch.Tensor:
    """A copy: a module may write into its input."""
    return torch.tensor(np.ascontiguousarray(sequences), dtype=torch.float64)
