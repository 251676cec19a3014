"""`everyformer ablate`: a step left out, and the certificate that falls with it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify.certificate_file import read_certificate
from everyformer.construct.ablation import ablate, with_means, without_stage
from everyformer.construct.certificates import as_stored
from everyformer.errors import CertificateError, InputError
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.verdict import Verdict

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ablate") / "out"
    ef.construct(ef.targets.sort(seq_len=2), grid=8, method="averaging").save(place)
    return place


@pytest.mark.parametrize(
    ("stage", "half"),
    [("digits", "both"), ("sum and look-up", "attention"), ("sum and look-up", "both")],
)
def test_without_a_step_the_claim_is_refuted(
    built: Path, stage: str, half: str, everyformer: Command
) -> None:
    given = ("ablate", built, "--stage", stage, "--half", half, "--json")
    found = json.loads(everyformer(*given, code=1).stdout)
    assert found["verification"]["verdict"] == "REFUTED"
    assert "is at least 0." in found["verification"]["reasons"][0]
    x = np.array(found["input"])
    whole = ef.load(built / "network.safetensors")
    assert np.array_equal(whole(x, executor="reference"), found["before"])
    less = without_stage(whole, stage, half)  # type: ignore[arg-type]
    assert np.array_equal(less(x, executor="reference"), found["after"])
    assert found["distance_sampled"] > 0.5
    assert sorted(path.name for path in built.iterdir()) == [
        "certificate.json",
        "network.safetensors",
    ]


def test_what_is_left_can_be_written_and_verified(
    built: Path, everyformer: Command
) -> None:
    text = everyformer("ablate", built, "--stage", "digits", "-o", "less", code=1).stdout
    assert "REFUTED" in text
    assert "measured at x" in text
    assert ef.verify("less").verdict is Verdict.REFUTED
    again = everyformer("ablate", built, "--stage", "digits", "-o", "less", code=2)
    assert "less" in again.stderr


def test_a_step_that_does_nothing_is_not_needed(built: Path, tmp_path: Path) -> None:
    """The negative control: PROVED, and the same outputs."""
    network = ef.load(built / "network.safetensors")
    w = network.architecture.inner_width
    W_1, W_2 = np.zeros((1, 1, w)), np.zeros((1, w, 1))
    layers = FeedForwardStack(W_1, np.zeros((1, 1)), W_2, np.zeros((1, w)))
    idle = Stage("idle", "here", None, layers)
    more = replace(network, stages=(*network.stages, idle))
    target = ef.targets.sort(seq_len=2)
    made = ef.construct(target, grid=8, method="averaging")
    more.save(tmp_path / "network.safetensors")
    stored = as_stored(more)
    sha256, blocks = stored.sha256, stored.blocks
    replace(made.certificate, weights_sha256=sha256, blocks=blocks).save(tmp_path)
    found = ablate(tmp_path, "idle")
    assert found.verification.verdict is Verdict.PROVED
    assert found.distance_sampled == 0


def test_a_mean_in_the_place_of_selection_is_refuted(
    tmp_path: Path, everyformer: Command
) -> None:
    """The verifier follows heads that select alone; boxes show that the claim is false."""
    place = tmp_path / "shifts"
    sort = ef.targets.sort(seq_len=2)
    ef.construct(sort, grid=4, method="selective-shift").save(place)
    given = ("ablate", place, "--stage", "selective shifts", "--by", "mean", "--json")
    found = json.loads(everyformer(*given, code=1).stdout)
    assert (found["half"], found["by"]) == ("attention", "mean")
    assert found["verification"]["verdict"] == "REFUTED"
    why = found["verification"]["reasons"]
    assert "is at least 0." in why[0]
    assert "boxes the network is apart from f" in why[1]
    assert "a query is 0" in why[2]
    assert found["distance_sampled"] > 0.5
    whole = ef.load(place / "network.safetensors")
    means = with_means(whole, "selective shifts")
    assert means.blocks == whole.blocks
    assert np.array_equal(means(np.array(found["input"])), found["after"])
    at_centres = np.abs(means(x := GRID) - sort(x)).max(axis=(1, 2))
    assert (at_centres > 0.5).any()


GRID = np.stack(np.meshgrid(*[(np.arange(4) + 0.5) / 4] * 2), axis=-1).reshape(-1, 2, 1)


def test_a_mean_in_the_place_of_a_head_that_does_nothing_is_proved(
    built: Path, tmp_path: Path
) -> None:
    """The negative control: it selects among values that are 0."""
    network = ef.load(built / "network.safetensors")
    w = network.architecture.inner_width
    ones, nothing = np.ones((1, 1, 1, w)), np.zeros((1, 1, 1, w))
    heads = AttentionStack(ones, np.ones((1, 1, 1)), ones, nothing, nothing.mT)
    more = replace(network, stages=(*network.stages, Stage("idle", "here", heads)))
    more.save(tmp_path / "network.safetensors")
    stored, certificate = as_stored(more), read_certificate(built)
    about = {"weights_sha256": stored.sha256, "blocks": stored.blocks}
    replace(certificate, **about).save(tmp_path)
    found = ablate(tmp_path, "idle", by="mean")
    assert found.verification.verdict is Verdict.PROVED, str(found)
    assert found.distance_sampled == 0


def test_wrong_input_is_refused(built: Path, tmp_path: Path, everyformer: Command) -> None:
    wrong = everyformer("ablate", built, "--stage", "clamp", code=2).stderr
    assert "'digits', 'sum and look-up'" in " ".join(wrong.split())
    wrong = everyformer("ablate", built, "--stage", "digits", "--half", "x", code=2).stderr
    assert "feed-forward" in wrong
    with pytest.raises(InputError, match="has no attention layers"):
        ablate(built, "digits", "attention")
    wrong = everyformer("ablate", built, "--stage", "digits", "--by", "max", code=2).stderr
    assert "nothing, mean" in wrong
    with pytest.raises(InputError, match="has no attention layers, so a mean"):
        ablate(built, "digits", by="mean")
    with pytest.raises(InputError, match="is a mean as it is"):
        ablate(built, "sum and look-up", by="mean")
    with pytest.raises(InputError, match="names the other half"):
        ablate(built, "sum and look-up", "feed-forward", by="mean")
    network = ef.load(built / "network.safetensors")
    single = replace(network, stages=network.stages[:1])
    with pytest.raises(InputError, match="nothing would be left"):
        without_stage(single, "digits")
    other = Path(shutil.copytree(built, tmp_path / "other"))
    single.save(other / "network.safetensors")
    with pytest.raises(CertificateError, match="do not belong together"):
        ablate(other, "digits")
