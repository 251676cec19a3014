"""Small images in shifted windows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from everyformer.data.batch import FILLING, Draw
from everyformer.errors import TrainingError
from everyformer.experiments.cell import conditions_hash
from everyformer.experiments.positions_picture import load_positions, positions_path
from everyformer.experiments.reproduce import reproduce
from everyformer.experiments.urpe_images import URPE_IMAGES
from everyformer.experiments.urpe_images.cells import ARMS, SCALES, cell, cells, labels_of
from everyformer.experiments.urpe_images.data import Images, bars, digits, images_of
from everyformer.experiments.urpe_images.task import MovedImages


def points() -> Images:
    """Twenty images of 3 x 3 pixels, each of its own numbers."""
    pixels = np.arange(20 * 9).reshape(20, 3, 3, 1) + 1
    splits = ("train", "validation", "test")
    labels = np.arange(20)
    return Images(
        "points", dict.fromkeys(splits, pixels), dict.fromkeys(splits, labels), 180, 20
    )


def test_images_are_moved_and_nothing_is_lost() -> None:
    task = MovedImages(images=points(), margin=2, seed=0, evaluated=20)
    assert (task.side, task.length) == (7, 49)
    middle = task.batch("test", Draw(torch.arange(20), 49))
    moved = task.batch("test", Draw(torch.arange(20, 40), 49))
    assert torch.equal(middle.labels, moved.labels)
    canvas = middle.tokens.reshape(20, 7, 7)
    assert torch.equal(canvas[:, 2:5, 2:5].flatten(1) - 1, torch.arange(180).reshape(20, 9))
    assert canvas.sum() == moved.tokens.sum(), "by no more than the margin"
    assert (moved.tokens != middle.tokens).any(1).float().mean() > 0.8
    rows = np.arange(40.0)
    judged = task.judged("test", {"accuracy": rows}, rows)
    assert judged["accuracy"].tolist() == list(range(20))
    assert judged["moved"].tolist() == list(range(20, 40))
    assert task.batch("train", Draw(torch.tensor([0, FILLING]), 49)).weights.tolist() == [
        1,
        0,
    ]


def test_an_epoch_shows_every_image_once_in_another_order_each_time() -> None:
    task = MovedImages(images=points(), margin=0, seed=3, evaluated=20)
    epochs = [
        task.batch("train", Draw(torch.arange(k, k + 20), 9)).labels.tolist()
        for k in (0, 20)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 2
    assert epochs[0] != epochs[1]


def test_files_of_images(tmp_path: Path) -> None:
    images = np.arange(24 * 4, dtype=np.uint8).reshape(24, 2, 2)
    path = tmp_path / "mine.npz"
    np.savez(path, images=images, labels=np.arange(24) % 3, levels=255)
    found = images_of(path)
    assert found.name.startswith("mine ")
    assert (found.levels, found.classes) == (255, 3)
    parts = [len(part) for part in found.labels.values()]
    assert parts == [16, 3, 5]
    everything = np.concatenate([part.reshape(-1, 4) for part in found.pixels.values()])
    assert sorted(map(tuple, everything)) == sorted(map(tuple, images.reshape(24, 4)))


def test_the_binary_version_of_cifar(tmp_path: Path) -> None:
    row = np.arange(3073) % 7
    rows = np.stack([row] * 4).astype(np.uint8)
    for number, name in enumerate(("1", "2", "3", "4", "5", "test")):
        name = "test_batch" if name == "test" else f"data_batch_{name}"
        rows[:, 0] = number
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    found = images_of(tmp_path)
    assert [part.shape for part in found.pixels.values()] == [
        (18, 32, 32, 3), (2, 32, 32, 3), (4, 32, 32, 3),
    ]  # fmt: skip
    assert set(found.labels["test"]) == {5}
    pixel = found.pixels["train"][0, 0, 1]
    assert pixel.tolist() == [row[2], row[2 + 1024], row[2 + 2048]], "channels together"
    assert len(cells("small", [0], {}, tmp_path)) == len(ARMS)
    rows[:, 0] = 10
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes())
    with pytest.raises(TrainingError, match="a label above 9"):
        images_of(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(TrainingError, match=r"lacks data_batch_3\.bin"):
        images_of(tmp_path)


def test_the_digits_of_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    pixels, labels = digits()
    assert pixels.shape == (1797, 8, 8)
    assert (pixels.max(), labels.max()) == (16, 9)


def test_arms_share_their_conditions() -> None:
    images = bars()
    found = [
        cell(SCALES["small"], arm, seed, {}, images) for arm in ARMS for seed in (0, 1)
    ]
    assert len({conditions_hash(one.settings) for one in found}) == 1
    assert len({one.identity for one in found}) == len(found)
    assert [dict(c.labels) for c in cells("smoke", [0, 1], {})] == labels_of(
        "smoke", [0, 1]
    )


def test_a_smoke_run_is_kept_and_drawn(tmp_path: Path) -> None:
    places: dict[str, Any] = {"out": tmp_path, "runs": tmp_path / "runs"}
    path = reproduce(URPE_IMAGES, "smoke", **places, only=["ape/0", "swin+urpe/0"])
    results = json.loads(path.read_text())["results"]
    assert all(set(r["more"]["test"]) == {"accuracy", "moved"} for r in results)
    found = load_positions(positions_path(path))
    assert {cell: list(own) for cell, own in found.items()} == {"swin+urpe/0": ["B", "C"]}
    assert found["swin+urpe/0"]["C"].shape == (2, 7, 7)
    assert path.with_suffix(".png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"labels": None}, "cannot be read as images"),
        ({"images": np.zeros((24, 2, 3), int)}, "square"),
        ({"images": np.zeros((24, 2, 2))}, "float64"),
        ({"labels": np.zeros(23, int)}, "as many"),
        ({"images": np.full((24, 2, 2), -1)}, "from 0 on"),
        ({"images": np.array([{}])}, "cannot be read"),
        ({"levels": np.array([1, 2])}, "cannot be read"),
        ({"images": np.full((24, 2, 2), 7), "levels": 3}, "pixels up to 7 with levels=3"),
        ({"labels": np.full(24, 10**9)}, "labels up to 1000000000 for 24 images"),
        ({"images": np.zeros((0, 2, 2), int), "labels": np.zeros(0, int)}, "zero-size"),
        ({"images": np.ones((9, 2, 2), int), "labels": np.zeros(9, int)}, "20 or more"),
    ],
)
def test_files_that_hold_no_images(
    arrays: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.npz"
    right: dict[str, Any] = {"images": np.ones((24, 2, 2), int), "labels": np.arange(24)}
    given = {name: x for name, x in (right | arrays).items() if x is not None}
    np.savez(path, **given)
    with pytest.raises(TrainingError, match=told):
        images_of(path)


def test_what_cannot_work_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainingError, match="urpe-images has no paper size"):
        cells("paper", [0], {})
    with pytest.raises(TrainingError, match="is not there"):
        images_of(tmp_path / "none.npz")
    with pytest.raises(TrainingError, match="canvas of 13, which 8 patches in a row"):
        cell(SCALES["small"], "swin", 0, {}, bars(side=5))
    found: dict[str, None] = {"sklearn": None}
    monkeypatch.setattr("everyformer.experiments.urpe_images.data.find_spec", found.get)
    with pytest.raises(TrainingError, match=r"everyformer\[images\]"):
        images_of(None)
