"""`everyformer data`: what there is, how it is made, and what to do when it cannot be."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everyformer.data.packs import excerpt, sources
from everyformer.data.packs.pack import read_pack
from everyformer.data.packs.sources import VOCABULARY, Recipe

Command = Callable[..., Any]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of small sources, and recipes that know them."""
    folder = tmp_path / "sources"
    (folder / "bert-vocab").mkdir(parents=True)
    words = excerpt.vocabulary().vocabulary
    (folder / VOCABULARY).write_text("\n".join(words) + "\n")
    towns = excerpt.towns("train")[:20] + excerpt.towns("test")[:5]
    towns += excerpt.towns("validation")[:5]
    (folder / "a.txt").write_text("".join(
        f" = {town.name.title()} = \n\n" + "\n".join(excerpt.sentences(town)) + "\n\n"
        for town in towns
    ))  # fmt: skip
    files = {name: _digest(folder / name) for name in (VOCABULARY, "a.txt")}
    small = Recipe("enwiki-wp", "enwiki", "towns", files, "free", 1, 1, ("mixers-bert",))
    monkeypatch.setitem(sources.RECIPES, "enwiki-wp", small)
    return folder


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_list_says_what_is_here(everyformer: Command, texts: Path) -> None:
    assert "mixers-bert" in everyformer("data", "list").stdout
    before = json.loads(everyformer("data", "list", "--json").stdout)
    assert {line["name"] for line in before} == set(sources.RECIPES)
    assert not any(line["here"] for line in before)
    everyformer("data", "pack", "enwiki-wp", "--from", texts, "--to", "packs")
    after = json.loads(everyformer("data", "list", "--data", "packs", "--json").stdout)
    here = {line["name"]: line["bytes"] for line in after if line["here"]}
    assert here == {"enwiki-wp": Path("packs/enwiki-wp.pack.xz").stat().st_size}
    shown = everyformer("data", "list", "--data", "packs").stdout
    assert "everyformer data pack squad --from DIR --to packs/" in shown
    assert "CC BY-SA 4.0" in shown
    for name in sources.RECIPES:
        assert f"│ {name} " in shown, "a name is on one line, to be copied"
    widths = {len(line) for line in shown.splitlines() if line.startswith("│")}
    assert widths == {80}, "the table is as wide as the terminal, and no wider"
    assert "…" not in shown  # names of packs were cut off, two to the same letters


def test_a_pack_is_made_once(everyformer: Command, texts: Path) -> None:
    told = everyformer("data", "pack", "enwiki-wp", "--from", texts).stdout
    assert "train_articles 20" in told
    assert [path.name for path in Path("packs").iterdir()] == ["enwiki-wp.pack.xz"]
    output = everyformer("data", "pack", "enwiki-wp", "--from", texts, code=2).output
    assert "exists already and is kept. Delete it" in output
    cut = everyformer(
        "data", "pack", "enwiki-wp", "--from", texts, "--tokens", 1500, "--json"
    )  # fmt: skip
    assert json.loads(cut.stdout)["path"] == "packs/enwiki-wp-1500.pack.xz"
    pack = read_pack(Path("packs/enwiki-wp-1500.pack.xz"))
    counts = pack.header["counts"]
    assert (
        sum(counts[f"{split}_tokens"] for split in ("train", "validation", "test")) == 1500
    )
    assert json.loads(cut.stdout)["sha256"] == pack.sha256


def test_a_cut_pack_has_training_text(everyformer: Command, texts: Path) -> None:
    """All 10 tokens would have been validation and test text, and many more."""
    cut = ("pack", "enwiki-wp", "--from", texts, "--tokens", 10)
    told = everyformer("data", *cut, code=2).stderr
    assert "10 tokens of enwiki-wp are too few to hold any training text" in told
    assert "Give more --tokens" in told
    assert not list(Path("packs").glob("*.xz"))


def test_work_that_was_interrupted_goes_on(
    everyformer: Command, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing half-written has the name of a pack; what was finished is used, then gone."""
    with monkeypatch.context() as patch:
        patch.setattr("everyformer.data.packs.pack._write", _interrupted)
        everyformer("data", "pack", "enwiki-wp", "--from", texts, code=130)
    assert [path.name for path in Path("packs").iterdir()] == [".enwiki-wp.work"]
    assert len(list(Path("packs/.enwiki-wp.work").iterdir())) > 1
    everyformer("data", "pack", "enwiki-wp", "--from", texts)
    assert [path.name for path in Path("packs").iterdir()] == ["enwiki-wp.pack.xz"]


def test_too_little_memory_is_said(
    everyformer: Command, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was to choose a coarser grid."""
    monkeypatch.setattr("everyformer.data.packs.making.write_pack", _too_large)
    told = everyformer("data", "pack", "enwiki-wp", "--from", texts, code=2).stderr
    assert told.startswith("Error: There is too little memory to make the pack enwiki-wp")
    assert "grid" not in told


def _too_large(*_: object, **__: object) -> None:
    raise MemoryError


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_two_workers_make_the_same_pack(everyformer: Command, texts: Path) -> None:
    digests: list[str] = []
    for workers in (1, 2):
        target = ("--to", f"p{workers}", "--workers", workers)
        everyformer("data", "pack", "enwiki-wp", "--from", texts, *target)
        digests.append(_digest(Path(f"p{workers}/enwiki-wp.pack.xz")))
    assert digests[0] == digests[1]


def test_what_is_wrong_is_said(everyformer: Command, texts: Path) -> None:
    def told(*args: object) -> str:
        output = everyformer("data", *args, code=2).output
        return " ".join(output.replace("│", " ").split())

    assert "'make' is not an action. Choose list, pack or overlap." in told("make")
    assert "`data pack` needs NAME; the packs are enwiki-wp," in told("pack")
    assert "`data pack` needs --from DIR" in told("pack", "nli")
    assert "'weather' is not a pack" in told("pack", "weather", "--from", texts)
    assert "nowhere is not a folder." in told("pack", "nli", "--from", "nowhere")
    missing = told("pack", "nli", "--from", texts)
    assert "lacks mnli/train_subset.tsv, snli-subset/snli_subset.tsv, mnli/dev_m" in missing
    assert "unpack them there, or give their folder (--from)" in missing
    assert "only packs of Wikipedia, novels or translations are cut" in told(
        "pack", "squad", "--from", texts, "--tokens", 10
    )
    with (texts / "a.txt").open("a") as file:
        file.write("more\n")
    assert "a.txt is another file: its sha256" in told("pack", "enwiki-wp", "--from", texts)
    (texts / VOCABULARY).write_text("the\n")
    found = told("pack", "enwiki-wp", "--from", texts)
    assert "vocab.txt is another vocabulary: its sha256 begins with" in found
    Path("file").write_text("")
    packed = ("pack", "enwiki-wp", "--from", texts, "--to", "file")
    assert "file is a file, and packs are written into a folder (--to)" in told(*packed)
    assert "'file' is a file, not a folder" in told("list", "--data", "file")
    assert not Path("packs").exists(), (
        "a folder is made when there is something to put there"
    )


def test_overlap_says_what_is_shared(
    everyformer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "one two three four five six seven eight nine ten eleven twelve thirteen"
    texts = {
        "train": " \n = Town = \n \n word \n",
        "valid": f" \n = Own = \n \n {said} \n",
        "test": f" \n = Other = \n \n {said[4:]} fourteen \n",
        "articles": f" = Count = \n\n{said.title()}.\n\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = {name: _digest(tmp_path / name) for name in texts}
    small = Recipe("enwiki-words", "words", "numbers", files, "free", 1, 1, ())
    monkeypatch.setitem(sources.RECIPES, "enwiki-words", small)
    ask = ("data", "overlap", "enwiki-words", "--from", tmp_path)
    told = everyformer(*ask).stdout
    assert "valid: 1 of 2 runs of 13 words stand in the training text (50.00%)" in told
    assert "50.0% of 'Own', most in 'Count'" in told
    assert "test: 0 of 2 runs of 13 words stand in the training text (0.00%)" in told
    assert json.loads(everyformer(*ask, "--json").stdout)["valid"][0]["within"] == "Count"
    output = everyformer("data", "overlap", "squad", "--from", tmp_path, code=2).output
    assert "squad is not made of words of WikiText and Wikipedia" in output
    output = everyformer("data", "overlap", "enwiki-words", code=2).output
    assert "`data overlap` needs --from DIR" in output
