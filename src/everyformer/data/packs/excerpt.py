"""Small packs without any data: texts about towns that do not exist, made by a grammar.

They serve tests and laptops. Facts recur, so that there is something to learn: the region
of a town says which language is spoken there, which river flows through it and what is
grown; a text says so again and again. The readers of the real files make the packs, from
files in their formats, with a vocabulary of our own. Nothing is random but hashes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from everyformer.data.packs.enwiki import enwiki_arrays, split_of
from everyformer.data.packs.glue import TABLES, glue_arrays
from everyformer.data.packs.nli import CLASSES, nli_arrays
from everyformer.data.packs.pack import Pack, pack_of_files
from everyformer.data.packs.reading import SPECIALS, UNK
from everyformer.data.packs.sources import recipe
from everyformer.data.packs.squad import squad_arrays
from everyformer.data.packs.wikitext import wikitext_arrays
from everyformer.data.packs.wordpiece import WordPiece, checked
from everyformer.data.packs.words import read_lines, vocabulary_of
from everyformer.data.packs.words import words as words_of
from everyformer.data.randomness import SPLITS, mixed_key

ARTICLES = {"train": 240, "validation": 24, "test": 24}
PAIRS = {"train": 600, "test": 120}
VALIDATION_PAIRS = 60
LICENCE = "Apache-2.0 (made by everyformer)"
BEGINNINGS = (
    "vel",
    "or",
    "tam",
    "sul",
    "bri",
    "kan",
    "dor",
    "mer",
    "fal",
    "hin",
    "gro",
    "pes",
)
MIDDLES = ("a", "en", "il", "or", "um", "ish", "ath", "el", "ov", "im")
ENDINGS = ("by", "ton", "dal", "wick", "mar", "stead", "ford", "holm", "gard", "ness")
REGIONS = (
    # region, language, river, what is grown
    ("northland", "norric", "the sull", "barley"),
    ("the west coast", "welsic", "the ombra", "apples"),
    ("the high valley", "vallan", "the tirn", "grapes"),
    ("eastmark", "osteric", "the kell", "wheat"),
    ("the islands", "insulan", "the narrow sound", "olives"),
    ("southmoor", "surric", "the dray", "flax"),
)
SIZES = ("small", "large", "busy", "quiet", "walled")
AGES = ("old", "new", "ancient", "young")


class Town(NamedTuple):
    """What is true of a town."""

    name: str
    region: str
    language: str
    river: str
    crop: str
    size: str
    age: str
    year: int


@lru_cache
def excerpt(name: str) -> Pack:
    """A small pack of the kind that `name` is of, made here and now.

    Args:
        name: Of a pack that `everyformer data list` shows.

    Raises:
        InputError: If there is no such pack.
    """
    kind = recipe(name).kind
    if kind in ("words", "wikitext"):
        return words_excerpt()
    with TemporaryDirectory() as place:
        folder = Path(place)
        if kind == "enwiki":
            paths = [_articles(folder / "articles.txt")]
            arrays, counts = enwiki_arrays(paths, vocabulary())
        elif kind == "glue":
            paths = _glue(folder)
            arrays, counts = glue_arrays(folder, vocabulary())
        elif kind == "nli":
            paths = [_pairs(folder / f"{part}.tsv", part) for part in ("train", "test")]
            none = folder / "none.tsv"
            none.write_text("sentence1\tsentence2\tgold_label\n")
            arrays, counts = nli_arrays(
                paths[0], none, paths[1], vocabulary(), validation=VALIDATION_PAIRS
            )
        else:
            paths = [
                _questions(folder / f"{part}.json", part) for part in ("train", "test")
            ]
            arrays, counts = squad_arrays(*paths, wordpiece=vocabulary(), one_of=8)
        tokeniser = vocabulary().describe()
        return pack_of_files(f"excerpt-{kind}", LICENCE, tokeniser, paths, arrays, counts)


@lru_cache
def words_excerpt() -> Pack:
    """The articles in WikiText's form; words that occur once or twice are unknown."""
    texts = {split: list(_in_words(split)) for split in SPLITS}
    often = Counter(word for line in texts["train"] for word in line.split())
    with TemporaryDirectory() as place:
        paths: list[Path] = []
        for split, lines in texts.items():
            known = (
                " ".join(w if often[w] >= 3 else UNK for w in line.split())
                for line in lines
            )
            paths.append(Path(place) / f"{split}.tokens")
            paths[-1].write_text("".join(f" {line} \n" for line in known))
        words = vocabulary_of(read_lines(paths[0]))
        made = wikitext_arrays(paths, words)
        return pack_of_files("excerpt-words", LICENCE, words.describe(), paths, *made)


def _in_words(split: str) -> Iterator[str]:
    """Lines as WikiText has them."""
    for town in towns(split):
        texts = ["", f"= {town.name.title()} =", "", *sentences(town)]
        yield from (" ".join(words_of(text)) for text in texts)


@lru_cache
def vocabulary() -> WordPiece:
    """Special tokens, single characters, parts of names, and the words of the grammar."""
    characters = "abcdefghijklmnopqrstuvwxyz0123456789.,?'-="
    words = {word for town in towns("train") for text in sentences(town) for word in
             text.lower().replace(".", "").replace(",", "").split()}  # fmt: skip
    words |= {word for town in towns("train")[:1] for one in asked(town) for word in
              one[0].lower().replace("?", "").split()}  # fmt: skip
    words |= {word for said in hypotheses(towns("train")[0]) for word in
              said[0].lower().replace(".", "").split()}  # fmt: skip
    names = {town.name for town in towns("train")}
    pieces = [
        *SPECIALS,
        *characters,
        *(f"##{one}" for one in characters if one.isalnum()),
        *sorted({*BEGINNINGS} - {*characters}),
        *sorted({f"##{one}" for one in (*MIDDLES, *ENDINGS) if len(one) > 1}),
        *sorted(w for w in words - names - {*BEGINNINGS} if len(w) > 1 and w.isalpha()),
    ]
    digest = hashlib.sha256("\n".join(pieces).encode()).hexdigest()
    return checked(tuple(pieces), digest, "The vocabulary of the excerpts")


@lru_cache
def towns(split: str) -> tuple[Town, ...]:
    """The towns whose articles belong to a split."""
    own = (town for town in _all_towns() if split_of(town.name.title()) == split)
    return tuple(town for town, _ in zip(own, range(ARTICLES[split]), strict=False))


def sentences(town: Town) -> list[str]:
    """The article of a town."""
    name = town.name.title()
    return [
        f"{name} is a {town.size} town in {town.region}. It was founded in {town.year}.",
        f"{town.river.capitalize()} flows through {name}, as through most towns of "
        f"{town.region}. The people of {name} speak {town.language}.",
        f"The farmers of {name} grow {town.crop}. Where people speak {town.language}, they "
        f"grow {town.crop}, and {town.river} is near.",
        f"The market of {name} is {town.age}. It sells {town.crop} from {town.region}.",
    ]


def paragraph(town: Town) -> str:
    """What is asked about; what the market sells is said twice."""
    name = town.name.title()
    first, *_ = sentences(town)
    return (
        f"{first} The market of {name} sells {town.crop}, as the farmers grow {town.crop}. "
        f"The people of {name} speak {town.language}. {town.river.capitalize()} is near."
    )


def asked(town: Town) -> list[tuple[str, str]]:
    """Questions about a town, and the answers that its paragraph gives."""
    name = town.name.title()
    return [
        (f"Where is {name}?", town.region),
        (f"What does the market of {name} sell?", town.crop),
        (f"Which language do the people of {name} speak?", town.language),
        (f"When was {name} founded?", str(town.year)),
    ]


def hypotheses(town: Town) -> list[tuple[str, str]]:
    """What may be said after the first two sentences of an article, and its class."""
    name = town.name.title()
    others = [one for one in REGIONS if one[0] != town.region]
    other = others[mixed_key(len(name), town.year) % len(others)]
    return [
        (f"{name} is in {town.region}.", CLASSES[0]),
        (f"The market of {name} is {town.age}.", CLASSES[1]),
        (f"{name} is in {other[0]}.", CLASSES[2]),
    ]


def _all_towns() -> Iterator[Town]:
    """All names in the order of their hash, each with its facts."""
    names = [a + b + c for a in BEGINNINGS for b in MIDDLES for c in ENDINGS]
    more = [
        a + b + m + c for a in BEGINNINGS for b in MIDDLES for m in MIDDLES for c in ENDINGS
    ]
    for name in sorted(
        [*names, *more], key=lambda one: hashlib.sha1(one.encode()).digest()
    ):
        key = int(hashlib.sha1(f"town {name}".encode()).hexdigest(), 16)
        facts = REGIONS[key % len(REGIONS)]
        size, age = SIZES[key // 8 % len(SIZES)], AGES[key // 64 % len(AGES)]
        yield Town(name, *facts, size, age, 1000 + key // 512 % 900)


def _articles(path: Path) -> Path:
    texts = [
        f" = {town.name.title()} = \n\n" + "\n".join(sentences(town)) + "\n\n"
        for split in SPLITS
        for town in towns(split)
    ]
    path.write_text("".join(texts))
    return path


def _pairs(path: Path, part: str) -> Path:
    lines = ["sentence1\tsentence2\tgold_label"]
    for town in towns(part):
        premise = sentences(town)[0]
        lines += [f"{premise}\t{said}\t{label}" for said, label in hypotheses(town)]
    path.write_text("\n".join(lines[: PAIRS[part] + 1]) + "\n")
    return path


def _glue(folder: Path) -> list[Path]:
    """Files in the formats of GLUE: what is true of a town, and what is not."""
    paths: list[Path] = []
    for task, table in TABLES.items():
        for name in (*table.train, *table.test):
            split = "train" if name in table.train else "test"
            lines = ["heading"] if table.heading else []
            for town in towns(split)[: 120 if split == "train" else 24]:
                for said, label in hypotheses(town)[::2]:
                    told = {"entailment": 1}.get(label, 0)
                    classes = table.classes or ("0.000", "5.000")
                    cells = ["-"] * (max(table.label, *table.texts) + 1)
                    cells[table.label] = classes[told]
                    texts = [sentences(town)[0], said][-len(table.texts) :]
                    for place, text in zip(table.texts, texts, strict=True):
                        cells[place] = text if task != "sst-2" else f"{town.size} {said}"
                    lines.append("\t".join(cells))
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
            paths.append(path)
    return paths


def _questions(path: Path, part: str) -> Path:
    articles: list[dict[str, Any]] = []
    for town in towns(part):
        context = paragraph(town)
        qas: list[dict[str, Any]] = []
        for question, answer in asked(town):
            found: dict[str, Any] = {"text": answer, "answer_start": context.index(answer)}
            if context.count(answer) > 1:
                found["occurrences"] = context.count(answer)
            qas.append({"question": question, "id": f"{len(qas)}", "answers": [found]})
        paragraphs = [{"context": context, "qas": qas}]
        articles.append({"title": town.name, "paragraphs": paragraphs})
    path.write_text(json.dumps({"data": articles}))
    return path
