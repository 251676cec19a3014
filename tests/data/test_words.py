"""Plain text to WikiText's words, and the packs that are made of them."""

import difflib
import os
import re
from pathlib import Path

import numpy as np
import pytest

from everyformer.data.packs.excerpt import excerpt, words_excerpt
from everyformer.data.packs.pack import new_pack, read_pack, write_pack
from everyformer.data.packs.wikitext import enwiki_words_arrays, wikitext_arrays
from everyformer.data.packs.words import plain, vocabulary_of, words
from everyformer.errors import FileFormatError

LINES = {
    "A crop circle is a pattern.": "A crop circle is a pattern .",
    "It cost $1,000 in 2001, not 3.5 million.":
        "It cost $ 1 @,@ 000 in 2001 , not 3 @.@ 5 million .",
    "Of 12,345,678 people 0.25% left.": "Of 12 @,@ 345 @,@ 678 people 0 @.@ 25 % left .",
    "a well-known, man-made one": "a well @-@ known , man @-@ made one",
    "a T-1000-like machine": "a T @-@ 1000 @-@ like machine",
    "from 5–6 to 5-6 and -5": "from 5 – 6 to 5 @-@ 6 and -5",
    "He didn't, and it's theirs; I'm sure they've won.":
        "He didn 't , and it 's theirs ; I 'm sure they 've won .",
    "O'Neil's dogs' bones": "O 'Neil 's dogs ' bones",
    "the 1990s' best, the 1990's best": "the 1990s ' best , the 1990 's best",
    "'quoted words'": "' quoted words '",
    "rock 'n' roll": "rock ' n ' roll",
    '"Nature," he said': '" Nature , " he said',
    "The U.S. and U.S.A. (e.g. in Washington, D.C.)":
        "The U.S. and U.S.A. ( e.g. in Washington , D.C. )",
    "Mr. and Mrs. J. R. Smith Jr. Then Dr. Who":
        "Mr. and Mrs. J. R. Smith Jr . Then Dr. Who",
    "Smith Jr. said so etc. and left": "Smith Jr. said so etc. and left",
    "No. 5 and No. Five, pp. 7": "No. 5 and No . Five , pp. 7",
    "So it ended. Then": "So it ended . Then",
    "and so on... or not....": "and so on ... or not ....",
    "wait...what?!": "wait ... what ? !",
    "see www.example.com.": "see www.example.com.",
    "1,5 a,b c, 3.": "1 @,@ 5 a , b c , 3 .",
    "9.9M and R100,000 of .38": "9.9M and R100,000 of .38",
    "and/or [sic] 50% £5 20 °C": "and / or [ sic ] 50 % £ 5 20 ° C",
    "Malmö–Åre naïveté": "Malmö – Åre naïveté",
    "at 7:30 a.m. on 1/2/2001": "at 7 : 30 a.m. on 1 / 2 / 2001",
    "* It has<br>a &amp; b": "It has a & b",
    "• one &amp;nbsp; two <ref name=\"x\">text</ref>": "one two text",
    "''italic'' and '''bold''' {{cite|x}} [[link]]": "italic and bold link",
    "of length formula_12, in codice_3 steps": "of length <formula> , in steps",
    "zero\u200bwidth soft\u00adhyphen": "zerowidth softhyphen",
}  # fmt: skip
"""Thirty lines, and what each must become."""


@pytest.mark.parametrize("line", LINES)
def test_lines_become_wikitext(line: str) -> None:
    assert " ".join(words(plain(line))) == LINES[line]


def test_kept_pieces_are_cut_as_fresh_ones() -> None:
    """Pieces that end in a full stop depend on what follows, and are kept apart."""
    lines = [*LINES, *LINES, "etc. And", "etc. and", "No. 5", "No. A", "No. 5"]
    known = vocabulary_of(["<unk>", *LINES.values()])
    for line in lines:
        text = plain(line)
        assert known.encoded(text) == known.numbers([*words(text), "<eos>"])


def test_the_official_text_comes_back() -> None:
    """wiki.valid.raw, glued to plain text and cut again: at least 99.8 % of its tokens."""
    place = os.environ.get("EVERYFORMER_WIKITEXT")
    if place is None:
        pytest.skip("set EVERYFORMER_WIKITEXT to the folder of wiki.valid.raw")
    same = total = 0
    for line in (Path(place) / "wiki.valid.raw").read_text().split("\n"):
        wanted = line.split()
        if wanted and wanted[0] != "=":
            found = list(words(glued(wanted)))
            match = difflib.SequenceMatcher(None, wanted, found, autojunk=False)
            same += sum(block.size for block in match.get_matching_blocks())
            total += len(wanted)
    assert total == 209_338
    assert same / total >= 0.998


def glued(tokens: list[str]) -> str:
    """Plain text, as a writer would set it."""
    text, inside, joined = "", False, True
    for token in tokens:
        if token in ("@-@", "@,@", "@.@"):
            text, joined = text + token[1], True
        elif token == '"':
            text += token if inside or joined else f" {token}"
            inside, joined = not inside, not inside
        elif re.fullmatch(r"[,.;:!?)\]%]|\.\.\.|'|'[^\W\d_]+", token):
            text, joined = text + token, False
        else:
            text, joined = text + ("" if joined else " ") + token, token in "([$£"
    return text


def test_articles_are_packed_as_wikitext_has_them(tmp_path: Path) -> None:
    path = tmp_path / "articles.txt"
    path.write_text(
        " = Crop = \n\nA crop.\nIt's <br>here.\n\n = Armour = \n\nLeft out.\n\n"
        " = Late one = \n\nMore crop.\n\n"
    )
    known = vocabulary_of(["<unk>", "= Crop A crop . It 's here"])
    arrays, counts = enwiki_words_arrays([path], known)
    told = [known.words[number] for number in arrays["train"]]
    assert " ".join(told) == (
        "<eos> = Crop = <eos> <eos> A crop . <eos> It 's here . <eos> "
        "<eos> = <unk> <unk> = <eos> <eos> <unk> crop . <eos>"
    )
    assert arrays["train_articles"].tolist() == [0, 15]
    assert counts == {"train_tokens": 26, "train_articles": 2, "train_unknown": 3}
    cut, _ = enwiki_words_arrays([path], known, tokens=10)
    np.testing.assert_array_equal(cut["train"], arrays["train"][:10])
    assert cut["train_articles"].tolist() == [0]


def test_files_of_another_data_set_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / f"wiki.{name}.tokens" for name in ("train", "valid", "test")]
    for path in paths:
        path.write_text(" \n = A b = \n \n <unk> word . \n \n = = Part = = \n")
    known = vocabulary_of(paths[0].read_text().removesuffix("\n").split("\n"))
    arrays, counts = wikitext_arrays(paths, known)
    assert arrays["test"].tolist()[:6] == known.numbers(
        ["<eos>", "=", "A", "b", "=", "<eos>"]
    )
    assert (counts["test_tokens"], counts["test_articles"]) == (18, 1)
    paths[1].write_text(" \n = A b = \n \n another word here . \n")
    with pytest.raises(FileFormatError, match="2 words that the vocabulary of 8 words"):
        wikitext_arrays(paths, known)
    paths[1].write_text(" word . \n")
    with pytest.raises(FileFormatError, match="does not begin with an article"):
        wikitext_arrays(paths, known)
    with pytest.raises(FileFormatError, match="lacks \\['<unk>'"):
        vocabulary_of(["no unknown word"])


def test_packs_of_words_are_packs(tmp_path: Path) -> None:
    pack = words_excerpt()
    assert excerpt("enwiki-words") is pack
    assert set(pack.specials) == {"<unk>", "<eos>"}
    keys = ("name", "licence", "tokeniser", "sources", "counts")
    header = {key: pack.header[key] for key in keys}
    write_pack(tmp_path / "a.pack.xz", header, pack.arrays)
    assert read_pack(tmp_path / "a.pack.xz").sha256 == pack.sha256
    mixed = {**header["tokeniser"], "specials": {"<unk>": 0, "[PAD]": 1}}
    write_pack(tmp_path / "b.pack.xz", {**header, "tokeniser": mixed}, pack.arrays)
    with pytest.raises(FileFormatError, match="does not describe a tokeniser"):
        read_pack(tmp_path / "b.pack.xz")
    assert new_pack(header, pack.arrays).sha256 == pack.sha256
