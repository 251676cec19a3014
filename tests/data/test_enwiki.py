"""Articles of Wikipedia: where they begin, who is held out, what is cut."""

from pathlib import Path

import numpy as np
import pytest

from everyformer.data.packs import enwiki
from everyformer.data.packs.enwiki import articles, enwiki_arrays, shards, split_of
from everyformer.data.packs.excerpt import vocabulary
from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError

HELD = [4, 31, 59, 60, 88, 242, 404, 443, 610, 630, 659, 679, 713, 942, 998]
TITLES = [f"Town {k}" for k in range(700)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    bodies = [f" = {title} = \n\nthe town {k}.\nold = new = \n\n" for k, title in enumerate(TITLES)]  # fmt: skip # noqa: E501
    dropped = [
        f" = {title} = \n\nmarket market\n\n" for title in sorted(enwiki.OVERLAPPING)
    ]
    (tmp_path / "a.txt").write_text("".join(bodies[:350] + dropped + bodies[350:]))
    return tmp_path / "a.txt"


def test_articles_and_splits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.title for one in articles(path) if one.title in TITLES] == TITLES
    whole, counts = enwiki_arrays([path], vocabulary())
    monkeypatch.setattr(enwiki, "SHARD", 2000)
    assert len(shards([path])) > 10
    apart, _ = enwiki_arrays([path], vocabulary())
    market = vocabulary().ids(["market"])[0]
    for split in SPLITS:
        own = [k for k, title in enumerate(TITLES) if split_of(title) == split]
        lines = [[f"= {TITLES[k]} =", f"the town {k}.", "old = new ="] for k in own]
        ids = [[one for line in vocabulary().ids(some) for one in line] for some in lines]
        assert whole[split].tolist() == [one for some in ids for one in some]
        starts = np.cumsum([0, *map(len, ids)])[:-1]
        assert whole[f"{split}_articles"].tolist() == starts.tolist()
        assert np.array_equal(whole[split], apart[split])
        assert not np.isin(whole[split], market).any(), "overlapping articles are dropped"
        assert counts[f"{split}_articles"] == len(own) > 0
    assert counts["source_paragraphs"] == 3 * 700


def test_only_training_text_is_cut(path: Path) -> None:
    whole, _ = enwiki_arrays([path], vocabulary())
    some, counts = enwiki_arrays([path], vocabulary(), tokens=1000)
    assert sum(len(some[split]) for split in SPLITS) == 1000
    for split in ("validation", "test"):
        assert np.array_equal(some[split], whole[split])
    assert np.array_equal(some["train"], whole["train"][: len(some["train"])])
    assert some["train_articles"].max() < len(some["train"])
    assert counts["source_tokens"] == sum(len(whole[split]) for split in SPLITS)


def test_known_splits_never_change() -> None:
    """Packs on other disks were split by them."""
    titles = ("Crop circle", "Armour", "Town 7", "Zürich")
    assert [split_of(title) for title in titles] == ["train"] * 4
    held = [k for k in range(1000) if split_of(f"Town {k}") != "train"]
    assert held == HELD
    shares = [split_of(str(k)) for k in range(20_000)]
    assert 60 < shares.count("validation") < 140
    assert 60 < shares.count("test") < 140


def test_files_without_articles(path: Path) -> None:
    path.write_text("no title\n\n = Late = \n\ntext\n")
    with pytest.raises(FileFormatError, match="does not begin with an article"):
        enwiki_arrays([path], vocabulary())
    path.write_bytes(b" = A = \n\n\xff\xfe\n\n")
    with pytest.raises(FileFormatError, match="The article 'A' in"):
        enwiki_arrays([path], vocabulary())
    path.write_bytes(b" = \xff = \n\ntext\n\n")
    with pytest.raises(FileFormatError, match="is not UTF-8 at byte 0"):
        enwiki_arrays([path], vocabulary())


def test_going_on_where_it_stopped(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enwiki, "SHARD", 2000)
    seen: list[int] = []

    def stops(what: str, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        enwiki_arrays([path], vocabulary(), work=tmp_path / "w", key="k", progress=stops)
    found, _ = enwiki_arrays(
        [path], vocabulary(), work=tmp_path / "w", key="k",
        progress=lambda what, done, total: seen.append(done),
    )  # fmt: skip
    assert seen[0] == 5
    assert np.array_equal(found["train"], enwiki_arrays([path], vocabulary())[0]["train"])
