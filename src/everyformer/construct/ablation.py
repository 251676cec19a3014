"""Is every step needed? A constructed network without one of them, verified again.

A stage, or its attention or feed-forward half, is left out: the skip connections make it
the identity. Or a mean takes the place of its attention: W_Q = 0 and b_Q = 0, so that all
scores are 0 and every token hears all others alike; values and outputs stay. The claim of
the certificate is put to these weights, and the verifier says what it says of any network:
REFUTED with a proved lower bound on the distance from f, UNKNOWN where it cannot follow,
PROVED if the step was not needed. Where it cannot follow, f and the network are enclosed on
boxes (`certify.refute`): REFUTED if they are apart by more than is claimed.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from everyformer.certify.certificate_file import read_certificate
from everyformer.certify.refute import refute
from everyformer.certify.verification import Verification
from everyformer.certify.verify import verify
from everyformer.certify.weights import read_weights
from everyformer.certify.work import MAX_WORK, Limits
from everyformer.errors import CertificateError, InputError
from everyformer.files.names import NETWORK_FILE
from everyformer.model.network import Network, load
from everyformer.model.stacks import AttentionStack, Stage

Half = Literal["both", "attention", "feed-forward"]
By = Literal["nothing", "mean"]
"""What takes the place of a step."""

SAMPLES = 64


@dataclass(frozen=True)
class Ablation:
    """What is left of a network without a step, or with another one in its place.

    Attributes:
        stage: The stage.
        half: Which half of it was left out, or replaced.
        by: What is in its place.
        network: The network without it.
        verification: What the verifier says of the old claim.
        input: A sequence, of some drawn at random, on which the two networks differ most.
        before: The output of the whole network there.
        after: The output of what is left.
    """

    stage: str
    half: Half
    by: By
    network: Network
    verification: Verification
    input: np.ndarray
    before: np.ndarray
    after: np.ndarray

    @property
    def distance_sampled(self) -> float:
        """The largest difference of an output there: measured, not proved."""
        return float(np.abs(self.before - self.after).max())

    def __str__(self) -> str:
        """The verdict, then the input."""
        what = "" if self.half == "both" else f"the {self.half} half of "
        title, after = f"Without {what}the stage {self.stage!r}:", "without"
        if self.by == "mean":
            title = f"With a mean in the place of attention in the stage {self.stage!r}:"
            after = "with a mean"
        return "\n".join(
            [
                title,
                str(self.verification),
                f"measured at x = {self.input.tolist()}: {self.before.tolist()} with it, "
                f"{self.after.tolist()} {after}, {self.distance_sampled:.4g} apart",
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "stage": self.stage,
            "half": self.half,
            "by": self.by,
            "blocks": self.network.blocks,
            "input": self.input.tolist(),
            "before": self.before.tolist(),
            "after": self.after.tolist(),
            "distance_sampled": self.distance_sampled,
            "verification": self.verification.to_json(),
        }

    def save(self, folder: Path) -> None:
        """Write what is left, with the old claim about it, for `verify`."""
        self.network.save(folder / NETWORK_FILE)
        self.verification.certificate.save(folder)


def without_stage(network: Network, stage: str, half: Half = "both") -> Network:
    """The network without a stage, or without one half of it.

    Raises:
        InputError: If there is no such stage or half, or nothing would be left.
    """
    _expect_stage(network, stage)
    if half not in get_args(Half):
        known = ", ".join(get_args(Half))
        raise InputError(f"half={half!r} does not exist. Choose one of {known}.")
    kept: list[Stage] = []
    for one in network.stages:
        if one.name != stage:
            kept.append(one)
            continue
        gone = one.attention if half == "attention" else one.feed_forward
        if half != "both" and gone is None:
            msg = f"The stage {stage!r} has no {half} layers. Choose another half, or both."
            raise InputError(msg)
        if half == "attention" and one.feed_forward is not None:
            kept.append(replace(one, attention=None))
        if half == "feed-forward" and one.attention is not None:
            kept.append(replace(one, feed_forward=None))
    if not kept:
        msg = f"Without {stage!r} nothing would be left: the network has no other stage."
        raise InputError(msg)
    return replace(network, stages=tuple(kept))


def with_means(network: Network, stage: str) -> Network:
    """The network whose attention in a stage is a plain mean of the same values.

    W_Q = 0 and b_Q = 0 make all scores 0: softmax gives equal weights, and so does hardmax,
    which shares them among the largest scores. A mask keeps who is heard, a gain its
    numbers.

    Raises:
        InputError: If there is no such stage, it has no attention, or all of it is a mean.
    """
    _expect_stage(network, stage)
    found = [one.attention for one in network.stages if one.name == stage]
    heads = [one for one in found if one is not None]
    if not heads:
        msg = (
            f"The stage {stage!r} has no attention layers, so a mean cannot take their "
            "place. Choose another stage, or leave this one out (by='nothing')."
        )
        raise InputError(msg)
    if not any(_scored(one) for one in heads):
        msg = (
            f"The attention of the stage {stage!r} is a mean as it is: all its scores are "
            "0. Leave it out (by='nothing', half='attention') to see whether it is needed."
        )
        raise InputError(msg)
    stages = tuple(
        replace(one, attention=_unscored(one.attention))
        if one.name == stage and one.attention is not None
        else one
        for one in network.stages
    )
    return replace(network, stages=stages)


def _unscored(heads: AttentionStack) -> AttentionStack:
    """The same values and outputs, with scores that are 0."""
    return replace(heads, W_Q=heads.W_Q * 0, b_Q=heads.b_Q * 0)


def _scored(heads: AttentionStack) -> bool:
    """Whether some head has scores that are not 0 for all tokens."""
    queries = heads.W_Q.any(axis=(-2, -1)) | heads.b_Q.any(axis=-1)
    return bool((queries & heads.W_K.any(axis=(-2, -1))).any())


def _expect_stage(network: Network, stage: str) -> None:
    names = [one.name for one in network.stages]
    if stage not in names:
        msg = f"This network has no stage {stage!r}. It has: {', '.join(map(repr, names))}."
        raise InputError(msg)


def _changed(network: Network, stage: str, half: Half, by: By) -> Network:
    if by not in get_args(By):
        known = ", ".join(get_args(By))
        raise InputError(f"by={by!r} does not exist. Choose one of {known}.")
    if by == "nothing":
        return without_stage(network, stage, half)
    if half == "feed-forward":
        msg = (
            "A mean takes the place of attention, and half='feed-forward' names the other "
            "half. Use half='attention', or by='nothing'."
        )
        raise InputError(msg)
    return with_means(network, stage)


def ablate(
    folder: Path,
    stage: str,
    half: Half = "both",
    *,
    by: By = "nothing",
    max_work: float = MAX_WORK,
) -> Ablation:
    """Verify a certificate for a network without one of its stages.

    Args:
        folder: Holds certificate.json and network.safetensors.
        stage: Name of the stage; all of that name.
        half: "attention" or "feed-forward" to leave out this half alone.
        by: "nothing" leaves it out; "mean" lets its attention listen to all tokens alike,
            and keeps the feed-forward half.
        max_work: Seconds that verifying may take, by an estimate.

    Raises:
        InputError: If there is no such stage or half, nothing would be left, or there is
            no attention for a mean to replace.
        CertificateError: If a file is damaged, or the two do not belong together.
        FileNotFoundError: If a file is missing.

    Example:
        >>> import everyformer as ef
        >>> f = ef.targets.sort(seq_len=2)
        >>> built = ef.construct(f, grid=8, method="averaging")
        >>> with tempfile.TemporaryDirectory() as place:
        ...     built.save(place)
        ...     found = ablate(Path(place), "sum and look-up", "attention")
        >>> str(found.verification.verdict)
        'REFUTED'
    """
    whole = load(folder / NETWORK_FILE)
    certificate = read_certificate(folder)
    sha256 = read_weights(folder / NETWORK_FILE).sha256
    if sha256 != certificate.weights_sha256:
        msg = (
            f"{folder / NETWORK_FILE} has sha256 {sha256[:16]}…, the certificate is about "
            f"{certificate.weights_sha256[:16]}…. They do not belong together."
        )
        raise CertificateError(msg)
    network = _changed(whole, stage, half, by)
    half = "attention" if by == "mean" else half
    low = np.asarray([float(v) for v in certificate.box.lows])
    high = np.asarray([float(v) for v in certificate.box.highs])
    sizes = (SAMPLES, certificate.seq_len, certificate.d_model)
    x = low + (high - low) * np.random.default_rng(0).random(sizes)
    before, after = (
        np.asarray(one(x, executor="auto" if one.is_exact else "reference"), dtype=float)
        for one in (whole, network)
    )
    worst = int(np.argmax(np.abs(before - after).max(axis=(1, 2))))
    with tempfile.TemporaryDirectory() as place:
        network.save(Path(place) / NETWORK_FILE)
        weights = read_weights(Path(place) / NETWORK_FILE)
        about = replace(certificate, weights_sha256=weights.sha256, blocks=weights.blocks)
        about.save(place)
        found = verify(place, max_work=max_work)
        found = refute(Path(place), found, Limits(max_work))
    at = (x[worst], before[worst], after[worst])
    return Ablation(stage, half, by, network, found, *at)
