"""Plain text to the words of WikiText: their form, and a vocabulary of whole words.

WikiText (Merity et al. 2016) was cut by the rules of Moses's English tokeniser. Here they
are again, as rules about one piece of text between two spaces and the kind of what follows:

    punctuation stands alone          (see, "here")   ->   ( see , " here " )
    hyphens inside words              well-known      ->   well @-@ known
    marks inside numbers              1,000 3.5       ->   1 @,@ 000 3 @.@ 5
    clitics                           didn't, it's    ->   didn 't, it 's
    a full stop stays                 in abbreviations (U.S., e.g.), after titles and single
                                      capitals (Mr., J.), before a word in lower case,
                                      and after No., pp. before a number
    several full stops                and so on...    ->   and so on ...

Case is kept. What is left of wiki markup, such as tags, entities and bullets, is not
text and is dropped (`plain`).
"""

import hashlib
import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from everyformer.data.packs.reading import EOS, UNK, tokeniser_of
from everyformer.errors import FileFormatError

Follows = Literal["lower", "digit", "other"]
"""What a piece of text is followed by: the end of a line is "other"."""

_TITLES = """
Adj Adm Adv Asst Bart Bldg Brig Bros Capt Cmdr Col Comdr Con Corp Cpl DR Dr Drs Ens Gen Gov
Hon Hosp Hr Insp Lt MM MR MRS MS Maj Messrs Mlle Mme Mr Mrs Ms Msgr Op Ord Pfc Ph Prof Pvt
Rep Reps Res Rev Rt Sen Sens Sfc Sgt Sr St Supt Surg rev v vs
"""
TITLES = frozenset(_TITLES.split())
"""Words whose full stop is theirs, whatever follows."""

BEFORE_NUMBERS = frozenset({"Art", "No", "Nos", "Nr", "pp"})
"""Words whose full stop is theirs where a number follows."""

APART = re.compile(r"([^\w.'`,-]|_)")
DOTS = re.compile(r"\.{2,}")
HYPHEN = re.compile(r"(?<=[^\W_])-(?=[^\W_])")
COMMA = re.compile(r"(?<!\d),|,(?!\d)")
CLITIC = re.compile(r"(?<=[^\W\d_])'(?=[^\W\d_])|(?<=\d)'(?=s)")
QUOTE = re.compile(r"(?<![^\W_])'(?=[^\W\d_])|'(?![^\W\d_])")
NUMBER = re.compile(r"\d+(?:[.,]\d+)+")
MARK = re.compile(r"([.,])")
TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>|<!--.*?-->|\{\{.*?\}\}|\[\[|\]\]|'{2,}")
BULLET = re.compile(r"^(?:[\s*#:;•·‣◦▪■□●○]+|\s*[–-]\s+)(?=\S)|(?<=\s)[•·‣◦▪■□●○](?=\s)")
ENTITY = re.compile(r"(?<=[&\s])(?:amp|nbsp|lt|gt|quot|ndash|mdash);|\bBULLET::::")
CODE = re.compile(r"\bcodice_\d+")
FORMULA = re.compile(r"\bformula_\d+")
UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060\ufeff]")
HOLDER, HELD = "\ue000", "<formula>"
"""WikiText's word for a formula, and the letter that stands for it until text is cut."""

CACHED = 1 << 22


def plain(line: str) -> str:
    """A line of text without what is left of its markup.

    Example:
        >>> plain("* It has<br>a &amp;amp; b, '''bold'''.")
        'It has a & b, bold.'
    """
    if "&" in line:
        line = html.unescape(html.unescape(line))
    if "<" in line or "{{" in line or "[[" in line or "]]" in line or "''" in line:
        line = TAG.sub(lambda found: " " if found[0][0] in "<{" else "", line)
    if "_" in line:
        line = CODE.sub("", FORMULA.sub(HOLDER, line))
    return BULLET.sub("", ENTITY.sub(" ", UNSEEN.sub("", line)))


def words(line: str) -> Iterator[str]:
    """The words of a line in WikiText's form.

    Example:
        >>> list(words("The U.S. paid $1,000 (it's well-known)."))  # doctest: +ELLIPSIS
        ['The', 'U.S.', 'paid', '$', '1', '@,@', '000', '(', 'it', "'s", 'well', ...
    """
    pieces = line.split()
    for piece, after in zip(pieces, [*pieces[1:], ""], strict=False):
        yield from cut(piece, follows(after) if piece[-1] == "." else "other")


def follows(after: str) -> Follows:
    """The kind of what comes after a space."""
    first = after[:1]
    return "lower" if first.islower() else "digit" if first.isdigit() else "other"


def cut(piece: str, before: Follows) -> list[str]:
    """The words of a piece of text without spaces.

    Args:
        piece: The text.
        before: What it stands before.
    """
    if piece.isalnum():
        return [piece]
    text = APART.sub(r" \1 ", piece)
    text = DOTS.sub(lambda dots: f" {dots[0]} ", text)
    text = HYPHEN.sub(" @-@ ", text)
    text = COMMA.sub(" , ", text)
    text = CLITIC.sub(" '", QUOTE.sub(" ' ", text))
    found: list[str] = []
    parts = text.split()
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        kind = before if last else follows(parts[place + 1])
        if part[-1] == "." and part.strip(".") and not _keeps_stop(part[:-1], kind):
            found += [*_number(part[:-1]), "."]
        else:
            found += _number(part)
    return found


def _keeps_stop(word: str, before: Follows) -> bool:
    """Whether the full stop after a word belongs to it."""
    if "." in word and any(letter.isalpha() for letter in word):
        return True
    single = len(word) == 1 and word.isupper()
    if single or word in TITLES or before == "lower":
        return True
    return word in BEFORE_NUMBERS and before == "digit"


def _number(part: str) -> list[str]:
    """A number at its marks; anything else as it is."""
    if part == HOLDER:
        return [HELD]
    if not NUMBER.fullmatch(part):
        return [part]
    return [f"@{one}@" if one in ".," else one for one in MARK.split(part)]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Whole words by their number.

    Args:
        words: The number of a word is its place; with `<unk>` and `<eos>`.
    """

    words: tuple[str, ...]
    _known: dict[str, list[int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse words that occur twice, and a vocabulary without the two special ones.

        Raises:
            FileFormatError: If so.
        """
        missing = [word for word in (UNK, EOS) if word not in self.words]
        if missing or len(set(self.words)) != len(self.words):
            msg = (
                f"A vocabulary of {len(self.words)} words, {len(set(self.words))} of them "
                f"different, lacks {missing or 'nothing'}. It has every word once, and "
                f"{UNK} and {EOS}: take it from the training file of WikiText."
            )
            raise FileFormatError(msg)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @property
    def sha256(self) -> str:
        """Of the words in their order."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """As the header of a pack has it."""
        return tokeniser_of(self.sha256, self.words, (UNK, EOS))

    def numbers(self, found: Iterable[str]) -> list[int]:
        """The numbers of words; that of `<unk>` for any other."""
        unknown = self._ids[UNK]
        return [self._ids.get(word, unknown) for word in found]

    def encoded(self, line: str) -> list[int]:
        """The numbers of `words(line)` and of the `<eos>` at its end.

        Pieces of text recur: what was cut once is kept.
        """
        pieces, known, found = line.split(), self._known, list[int]()
        if len(known) > CACHED:
            known.clear()
        last = len(pieces) - 1
        for place, piece in enumerate(pieces):
            before: Follows = "other"
            key = piece
            if piece[-1] == "." and place < last:
                before = follows(pieces[place + 1])
                key = piece if before == "other" else f"{piece} {before}"
            ids = known.get(key)
            if ids is None:
                ids = known[key] = self.numbers(cut(piece, before))
            found += ids
        found.append(self._ids[EOS])
        return found


def vocabulary_of(lines: Iterable[str], *, by_frequency: bool = False) -> Vocabulary:
    """All words of a tokenised training text, in the order in which they first occur.

    Args:
        lines: Words between spaces.
        by_frequency: The most frequent first instead, as adaptive softmax wants them.

    Example:
        >>> vocabulary_of(["the <unk> sat", "the end"]).words
        ('the', '<unk>', 'sat', '<eos>', 'end')
    """
    seen = Counter[str]()
    for line in lines:
        seen.update(line.split())
        seen[EOS] += 1
    return Vocabulary(
        tuple(w for w, _ in seen.most_common()) if by_frequency else tuple(seen)
    )


def read_lines(path: Path) -> list[str]:
    """The lines of a text file.

    Raises:
        FileFormatError: If it is not UTF-8.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        msg = f"{path} is not text in UTF-8. Unpack it again."
        raise FileFormatError(msg) from error
    return text.removesuffix("\n").split("\n")
