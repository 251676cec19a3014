"""Is every step needed? A constructed network without one of them, verified again.

A stage, or its attention or feed-forward half, is left out: the skip connections make it
the identity. The claim of the certificate is put to the weights that remain, and the
verifier says what it says of any network: REFUTED with a proved lower bound on the
distance from f, UNKNOWN where it cannot follow, PROVED if the step was not needed.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from everyformer.certify.certificate_file import read_certificate
from everyformer.certify.verification import Verification
from everyformer.certify.verify import NETWORK_FILE, verify
from everyformer.certify.weights import read_weights
from everyformer.certify.work import MAX_WORK
from everyformer.errors import CertificateError, InputError
from everyformer.model.network import Network, load
from everyformer.model.stacks import Stage

Half = Literal["both", "attention", "feed-forward"]
SAMPLES = 64


@dataclass(frozen=True)
class Ablation:
    """What is left of a network without a step.

    Attributes:
        stage: The stage.
        half: Which half of it was left out.
        network: The network without it.
        verification: What the verifier says of the old claim.
        input: A sequence, of some drawn at random, on which the two networks differ most.
        before: The output of the whole network there.
        after: The output of what is left.
    """

    stage: str
    half: Half
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
        return "\n".join(
            [
                f"Without {what}the stage {self.stage!r}:",
                str(self.verification),
                f"measured at x = {self.input.tolist()}: {self.before.tolist()} with it, "
                f"{self.after.tolist()} without, {self.distance_sampled:.4g} apart",
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "stage": self.stage,
            "half": self.half,
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
    names = [one.name for one in network.stages]
    if stage not in names:
        msg = f"This network has no stage {stage!r}. It has: {', '.join(map(repr, names))}."
        raise InputError(msg)
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


def ablate(
    folder: Path, stage: str, half: Half = "both", *, max_work: float = MAX_WORK
) -> Ablation:
    """Verify a certificate for a network without one of its stages.

    Args:
        folder: Holds certificate.json and network.safetensors.
        stage: Name of the stage; all of that name.
        half: "attention" or "feed-forward" to leave out this half alone.
        max_work: Seconds that verifying may take, by an estimate.

    Raises:
        InputError: If there is no such stage or half, or nothing would be left.
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
    network = without_stage(whole, stage, half)
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
    return Ablation(stage, half, network, found, x[worst], before[worst], after[worst])
