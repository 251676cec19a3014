"""How much of a held-out text stands in a training text."""

from pathlib import Path

import numpy as np
import pytest

from everyformer.data.packs.overlap import RUN, overlap, runs_of
from everyformer.errors import FileFormatError

SAID = "In 1,000 of the well-known towns it's said that nobody didn't sleep at noon ."
TOKENS = (
    "In 1 @,@ 000 of the well @-@ known towns it 's said that "
    "nobody didn 't sleep at noon ."
)


def held_out(folder: Path, *paragraphs: str) -> Path:
    path = folder / "wiki.test.tokens"
    lines = [
        " ",
        " = Some Town = ",
        " ",
        *paragraphs,
        " ",
        " = Other = ",
        " ",
        SAID.upper(),
    ]
    path.write_text("\n".join([*lines, ""]))
    return path


def training(folder: Path, **articles: str) -> Path:
    path = folder / "articles.txt"
    path.write_text(
        "".join(f" = {name} = \n\n{text}\n\n" for name, text in articles.items())
    )
    return path


def words(text: str) -> int:
    return len(runs_of(text, {})) + RUN - 1


def test_text_is_found_in_another_form(tmp_path: Path) -> None:
    path = training(tmp_path, Else="Nothing of it here.", Sleep=f"Long ago. {SAID} Then.")
    found = {one.title: one for one in overlap(held_out(tmp_path, TOKENS), [path])}
    some, other = found["Some Town"], found["Other"]
    runs = words(SAID) - RUN + 1
    assert some.found == other.found == runs
    assert (some.runs, other.runs) == (runs + 2, runs + 1), "titles are words, too"
    assert some.within == other.within == "Sleep"


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    """Negative control: another word, a hidden word, the border of two articles."""
    halves = SAID[:40], SAID[40:]
    path = training(
        tmp_path, First=halves[0], Second=halves[1], Third=SAID.replace("said", "told")
    )
    hidden = TOKENS.replace("said", "<unk>")
    found = overlap(held_out(tmp_path, hidden), [path])
    assert [one.found for one in found] == [0, 0]
    assert [one.within for one in found] == ["", ""]


def test_dropped_articles_do_not_count(tmp_path: Path) -> None:
    path = training(tmp_path, Armour=SAID)
    text = held_out(tmp_path, TOKENS)
    assert not any(one.found for one in overlap(text, [path]))
    assert all(one.found for one in overlap(text, [path], dropped=frozenset()))


def test_runs_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(["a", "b"], 400))
    found, letters = runs_of(text, {}), text.split()
    plain = [tuple(letters[k : k + RUN]) for k in range(len(letters) - RUN + 1)]
    assert len(np.unique(found)) == len(set(plain)) < len(plain)


def test_a_text_without_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wiki.test.tokens"
    path.write_text(" \n = A = \n \n too short . \n")
    with pytest.raises(FileFormatError, match="has no 13 words in a row"):
        overlap(path, [training(tmp_path, A=SAID)])
