"""A constructed network with somebody's own attention in the place of ours.

The network of averaging attention needs two things of its attention layers: the sum of all
tokens, and positions. With layers of a witness (`witness`) it is built anew:

    read-in      as before, but the same for every token: nothing tells positions
    positions    a layer adds v_i to a register v that was 0
    places       a staircase in v adds what the read-in gave token i: start_i - start_1
    digits       as before
    sum          layers add C = sum_j A_j
    look-up      as before

**Claim.** If v_1 .. v_n lie in intervals that do not meet, and the layers add
(1 + e_ij) A_j to C of token i with sum_j |e_ij| max A <= 1/4, the new network equals the
old one wherever that is constant on a cell, and stays in the range of its look-up
elsewhere. So the bound of the old one's certificate, which uses nothing else, is a bound
for the new one.

*Proof.* The staircase is constant around each interval, so places adds exactly
start_i - start_1 (sums of float64 numbers that are exact, which is checked), and digits
sees what it saw. On a cell the key is an integer, and the look-up is constant within 3/8 of
it. Elsewhere it lies between two neighbouring values, whatever its key. ∎
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.certify.averaging.reading import RegisterReading, read_registers
from everyformer.certify.certificate import Certificate
from everyformer.certify.hypotheses import Hypothesis, Kind, headline
from everyformer.certify.register_stages import Layer, Mean
from everyformer.certify.ridge import Ridge
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import read_weights
from everyformer.checks.own_attention.forms import NotAffine
from everyformer.checks.own_attention.state import Kept, as_they_will_run, state_of
from everyformer.checks.own_attention.witness import (
    Added,
    Witness,
    as_fractions,
    handed_out,
    positions_told,
    tokens_heard,
    what_it_adds,
    what_it_seems_to_add,
)
from everyformer.errors import InputError
from everyformer.model.network import Network
from everyformer.model.stacks import FeedForwardStack, Stage
from everyformer.model.torch_module import BlockRun
from everyformer.papers import LUO2022, implements
from everyformer.targets.box import Box
from everyformer.verdict import Verdict

SOURCE = "everyformer, docs/constructions/own_attention.md"

TOLERATED = Fraction(1, 4)
"""Error of a key that the look-up does not notice: less than its 3/8."""

Places = tuple[tuple[Fraction, Fraction], ...]

FOLLOWED = Hypothesis(
    Kind.EXPORT,
    "the attention layers compute what torch.export shows of them",
    ("real",),
)


@dataclass(frozen=True)
class Realised:
    """A network with somebody's own attention.

    Attributes:
        module: Maps float64 tokens (*batch, n, d) to the same shape.
        places: v, an interval for each position.
        key_error: How far the key of a look-up may be off on a cell.
        hypotheses: What it rests on that the certificate is about it.
        sha256: Hash of the weights of the network that it was made of.
        kept: The module as it was when it was followed.
    """

    module: nn.Module
    places: Places
    key_error: Fraction
    hypotheses: tuple[Hypothesis, ...]
    sha256: str
    kept: Kept

    def report(self, certificate: Certificate) -> str:
        """What is proved of the module, by the certificate of the network it was made of.

        A line with the verdict, and one for everything that it rests on.

        Raises:
            InputError: If the certificate is of other weights, or claims nothing of real
                arithmetic, or the module is not what it was when it was followed.
        """
        self.kept.check(self.module)
        if certificate.weights_sha256 != self.sha256:
            msg = (
                "The certificate is about other weights than the network that the module "
                "was made of. Give that of the same network."
            )
            raise InputError(msg)
        proved = certificate.verdict is Verdict.PROVED and not certificate.unchecked
        if not proved or "real" not in certificate.claims:
            msg = (
                "The certificate does not prove a bound in real arithmetic, or was read "
                "from a file and not verified. Give that of the network that was built."
            )
            raise InputError(msg)
        if certificate.everywhere and self.key_error:
            msg = (
                f"Keys are off by up to {float(self.key_error):.3g}, and outside the box "
                "nothing is proved of them. Use layers that add sums exactly."
            )
            raise InputError(msg)
        claim = replace(certificate, claims=("real",)).claim(certificate.statement.name)
        claim = claim.replace(", g in", ", g the module in")
        real = [one for one in certificate.hypotheses if "real" in one.claims]
        rests = (*real, *self.hypotheses)
        lines = [headline("PROVED", claim, rests), *(f"assumes: {one}" for one in rests)]
        return "\n".join(lines)


@implements(LUO2022, "Theorem 3")
def with_own_attention(
    network: Network, witness: Witness, *, assume: bool = False
) -> Realised:
    """A constructed network whose attention layers are somebody's own.

    Args:
        network: Built by averaging attention with positions.
        witness: Hands out layers for the two conditions.
        assume: Go on if a layer cannot be followed: what it adds is then measured at random
            tokens, and claims are CONDITIONAL on it.

    Raises:
        InputError: If the network is another one, or a layer does not do what its condition
            asks: what was given, why not, and what to do.
    """
    held = _examined(network)
    n, w = held.start.shape
    width = w + 1  # and a register for v
    followed: list[bool] = []

    c = torch.zeros(width, dtype=torch.float64)
    c[w] = 1.0
    M = torch.zeros(width, width, dtype=torch.float64)
    M[:w, :w] = torch.tensor(held.sums)
    telling, hearing = handed_out(witness, n, M, c)
    given = as_they_will_run([telling, *hearing])

    def added(layer: nn.Module) -> Added:
        try:
            found = what_it_adds(layer, width, n)
        except NotAffine as error:
            if not assume:
                msg = (
                    f"{type(layer).__name__} is not proved to add a fixed combination of "
                    f"its tokens: {error}. Give weights for which scores do not move with "
                    "the tokens (W_Q = 0), use operations that can be followed, or pass "
                    "assume=True: the claim is then CONDITIONAL on it."
                )
                raise InputError(msg) from error
            followed.append(False)
            return what_it_seems_to_add(layer, width, n)
        followed.append(True)
        return found

    places = positions_told(type(telling).__name__, added(telling), c)
    off = tokens_heard([added(layer) for layer in hearing], M) * held.largest
    if off > held.tolerated:
        msg = (
            f"The layers for the attentive condition add the sum of the tokens to within "
            f"{float(off):.3g} of a key, and the look-up tolerates "
            f"{float(held.tolerated):.3g}. Make them select more sharply, or use a coarser "
            "grid."
        )
        raise InputError(msg)
    module = OwnNetwork(network, telling, hearing, place_layer(held.start, places))
    if state_of(nn.ModuleList([telling, *hearing])) != given:
        msg = (
            "A layer of the witness changes its own weights, buffers or mode when it is "
            "run, so that what was found of it need not hold for the next run. Give layers "
            "without a state."
        )
        raise InputError(msg)
    rests = FOLLOWED if all(followed) else MEASURED
    kept = Kept.of(module, n, held.box)
    return Realised(module, places, off, (rests,), held.sha256, kept)


MEASURED = Hypothesis(
    Kind.ATTENTION,
    "what the layers of the witness add was measured, and not proved",
    ("real",),
)


@dataclass(frozen=True)
class _Held:
    """What is known of the network, from its weights.

    Attributes:
        sums: What its attention adds is sums (sum_j x_j), float64 (w, w).
        start: Its read-in's constants, (n, w).
        largest: No register that the sum reads is larger on a cell.
        tolerated: How far a key may be off without a change of what is looked up.
        sha256: Hash of the weights.
        box: The domain of a token.
    """

    sums: np.ndarray
    start: np.ndarray
    largest: Fraction
    tolerated: Fraction
    sha256: str
    box: Box


def _examined(network: Network) -> _Held:
    """Read the network as the verifier does.

    Raises:
        InputError: If it is not one of averaging attention with positions.
    """
    registers, made = network.registers, network.construction
    means = [stage.attention for stage in network.stages if stage.attention is not None]
    with_positions = registers is not None and len(registers.start) == len(
        np.unique(registers.start, axis=0)
    )
    if not with_positions or made is None or len(means) != 1:
        msg = (
            "A network of averaging attention with positions is needed, with one attention "
            "layer. Build it by averaging attention, with positional=True."
        )
        raise InputError(msg)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        network.save(path)
        weights = read_weights(path)
    try:
        box = Box(made.lows, made.highs)
        reading = read_registers(weights, box, made.grid)
    except Undecided as error:
        raise InputError(f"The network cannot be read: {error}") from error
    mean = reading.later[0]
    assert isinstance(mean, Mean), "attention comes first"  # noqa: S101
    n = weights.seq_len
    exact = mean.matrix / n
    sums = np.array([[float(v) for v in row] for row in exact])
    read, written = (sums != 0).any(axis=0), (sums != 0).any(axis=1)
    if (read & written).any() or any(
        Fraction(float(a)) != b for a, b in zip(sums.flat, exact.flat, strict=True)
    ):
        raise InputError("Its attention reads what it writes, or float64 rounds M / n.")
    tokens = reading.tokens
    values = [Fraction(int(v), tokens.unit) for v in tokens.numbers[..., read].flat]
    tolerated = _tolerated(reading, read, written)
    assert registers is not None, "as above"  # noqa: S101
    largest = max([Fraction(1), *(abs(v) for v in values)])
    return _Held(sums, registers.start, largest, tolerated, weights.sha256, box)


def _tolerated(reading: RegisterReading, read: np.ndarray, written: np.ndarray) -> Fraction:
    """How far C may be off without any change of the output on cells; 0 if unknown.

    Known for a sum that one look-up follows. On cells all that it reads are integers, so a
    ridge that reads s C + s (integer) sees s times an integer key. It is constant around
    every integer, up to its nearest bend, if its pieces with integers in them are level.
    """
    layers, unit = reading.later[1:], reading.tokens.unit
    inexact = np.asarray(reading.registers.W_out[:, written] != 0).any()
    if len(layers) != 1 or not isinstance(layers[0], Layer) or inexact:
        return Fraction(0)
    least = TOLERATED
    for ridge in layers[0].ridges:
        used = ridge.row != 0
        if not (used & written).any():
            continue
        if (used & written).sum() > 1:  # errors of several sums may add up
            return Fraction(0)
        whole = reading.tokens.numbers[..., used | read] % unit == 0
        s = Fraction(float(ridge.row[used & written][0]))
        row = [Fraction(float(v)) / s for v in ridge.row[used]]
        if (used & reading.inputs).any() or not np.asarray(whole).all():
            return Fraction(0)
        if any(v.denominator != 1 for v in row):
            return Fraction(0)
        least = min(least, _room(ridge, s))
    return least


def _room(ridge: Ridge, s: Fraction) -> Fraction:
    """The least distance of a bend from an integer key, or 0 if some key sees a slope."""
    keys = sorted(Fraction(bend) / s for bend in ridge.bends.tolist())
    level = np.asarray((ridge.slopes == 0).all(axis=1)).tolist()
    level = level if s > 0 else level[::-1]
    ends = [None, *keys, None]
    for flat, (low, high) in zip(level, pairwise(ends), strict=True):
        if not flat and (low is None or high is None or floor(high) >= ceil(low)):
            return Fraction(0)
    return min((abs(key - round(key)) for key in keys), default=TOLERATED)


def place_layer(start: np.ndarray, places: Places) -> FeedForwardStack:
    """The staircase in v that adds start_i - start_1 to token i.

    Raises:
        InputError: If float64 does not hold the differences exactly.
    """
    n, w = start.shape
    order = sorted(range(n), key=lambda i: places[i][0])
    gaps = [places[b][0] - places[a][1] for a, b in pairwise(order)]
    ramp = min([Fraction(1), *gaps]) / 8
    sharp = 2 ** (ramp.denominator // ramp.numerator).bit_length()  # >= 1/ramp
    middles = [
        places[a][1] + gap / 2 for (a, _), gap in zip(pairwise(order), gaps, strict=True)
    ]
    starts = [-float(round(middle * sharp)) for middle in middles]  # integers
    steps = np.stack([start[b] - start[a] for a, b in pairwise(order)] or [np.zeros(w)])
    W_1, b_1 = np.zeros((2 * n - 2 or 2, w + 1)), np.zeros(2 * n - 2 or 2)
    W_2, b_2 = np.zeros((w + 1, 2 * n - 2 or 2)), np.zeros(w + 1)
    for k, begin in enumerate(starts):
        W_1[2 * k : 2 * k + 2, w] = float(sharp)
        b_1[2 * k : 2 * k + 2] = begin + 0.5, begin - 0.5
        W_2[:w, 2 * k], W_2[:w, 2 * k + 1] = steps[k], -steps[k]
    b_2[:w] = start[order[0]] - start[0]
    for i, ends in enumerate(places):
        exact = _staircase(W_1[:, w], b_1, W_2[:w], b_2[:w], ends)
        wanted = as_fractions(torch.tensor(start[i])) - as_fractions(torch.tensor(start[0]))
        if exact is None or (exact != wanted).any():
            msg = (
                f"Positions cannot be set exactly in float64: token {i + 1} would be moved "
                "by a rounded number, or v is known too coarsely. Use the domain [0, 1] "
                "and a power of two for the grid."
            )
            raise InputError(msg)
    return FeedForwardStack(W_1[None], b_1[None], W_2[None], b_2[None])


def _staircase(
    slopes: np.ndarray,
    biases: np.ndarray,
    W_2: np.ndarray,
    b_2: np.ndarray,
    ends: tuple[Fraction, Fraction],
) -> np.ndarray | None:
    """What the staircase adds for all v between two ends, exactly; None if it varies."""
    total = as_fractions(torch.tensor(b_2))
    slope = total * 0
    for k, (s, b) in enumerate(zip(slopes.tolist(), biases.tolist(), strict=True)):
        low, high = (Fraction(s) * end + Fraction(b) for end in ends)
        if low < 0 < high:
            return None
        if low >= 0 and s:
            column = as_fractions(torch.tensor(W_2[:, k]))
            total = total + column * Fraction(b)
            slope = slope + column * Fraction(s)
    return None if (slope != 0).any() else total


class OwnNetwork(nn.Module):
    """The network with the layers of a witness."""

    def __init__(
        self,
        network: Network,
        telling: nn.Module,
        hearing: Sequence[nn.Module],
        places: FeedForwardStack,
    ) -> None:
        """The layers, in order."""
        super().__init__()
        held = network.registers
        assert held is not None, "checked before"  # noqa: S101
        self.shape = (network.architecture.seq_len, network.architecture.d_model)
        self.W_in = nn.Parameter(_wider(held.W_in, 0))
        self.start = nn.Parameter(_wider(held.start[0], 0))
        self.W_out = nn.Parameter(_wider(held.W_out, 1))
        first = Stage("places", SOURCE, feed_forward=places)
        layers: list[nn.Module] = [telling, BlockRun(first, hard=False)]
        for stage in network.stages:
            layers += hearing if stage.attention is not None else []
            if stage.feed_forward is not None:
                own = _wider_layers(stage.feed_forward)
                layers.append(
                    BlockRun(Stage(stage.name, SOURCE, feed_forward=own), hard=False)
                )
        self.layers = nn.ModuleList(layers)
        # Layers of the witness have been put into this mode before they were followed.
        for own in (self, self.layers, *(one for one in layers if type(one) is BlockRun)):
            own.training = False

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of shape (*batch, n, d), float64, to the same shape.

        Raises:
            InputError: If they are not.
        """
        if x.shape[-2:] != self.shape or x.dtype != torch.float64:
            msg = (
                f"x has shape {tuple(x.shape)} and {x.dtype}; this network takes float64 "
                f"of shape (*batch, {self.shape[0]}, {self.shape[1]})."
            )
            raise InputError(msg)
        z = x.reshape(-1, *self.shape) @ self.W_in.mT + self.start
        for layer in self.layers:
            # A layer of a witness is proved for one sequence at a time.
            own = isinstance(layer, BlockRun)
            z = layer(z) if own else torch.cat([layer(one[None]) for one in z])
        return (z @ self.W_out.mT).reshape(x.shape)


def _wider(array: np.ndarray, axis: int) -> Tensor:
    """One register more, 0."""
    shape = list(array.shape)
    shape[axis] = 1
    return torch.tensor(np.concatenate([array, np.zeros(shape)], axis=axis))


def _wider_layers(stack: FeedForwardStack) -> FeedForwardStack:
    W_1, W_2, b_2 = (
        _wider(array, axis).numpy()
        for array, axis in ((stack.W_1, 2), (stack.W_2, 1), (stack.b_2, 1))
    )
    return FeedForwardStack(W_1, stack.b_1, W_2, b_2)
