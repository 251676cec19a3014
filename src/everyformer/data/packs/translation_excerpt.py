"""A small pack of translations without any data: towns that do not exist, in two languages.

The second language is made from the first: every word has another one, by its letters, and
the last word of a sentence comes first. The reader of the real files makes the pack.
"""

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from everyformer.data.packs.excerpt import LICENCE, sentences, towns
from everyformer.data.packs.pack import Pack, pack_of_files
from everyformer.data.packs.translation import aligned_pairs, translation_arrays
from everyformer.data.randomness import SPLITS

PIECES = 400
VOWELS = str.maketrans("aeiou", "eioua")


@lru_cache
def translation_excerpt() -> Pack:
    """Sentences of all articles and their translations."""
    with TemporaryDirectory() as place:
        paths: list[Path] = []
        for split in SPLITS:
            said = [
                f"{one.rstrip('.')}."
                for town in towns(split)
                for text in sentences(town)
                for one in text.split(". ")
            ]
            for language, lines in (("a", said), ("b", [translated(t) for t in said])):
                paths.append(Path(place) / f"{split}.{language}")
                paths[-1].write_text("".join(f"{line}\n" for line in lines))
        arrays, counts, pieces = translation_arrays(aligned_pairs(paths), PIECES)
        name, tokeniser = "excerpt-translation", pieces.describe()
        return pack_of_files(name, LICENCE, tokeniser, paths, arrays, counts)


def translated(sentence: str) -> str:
    """The sentence in the other language.

    Example:
        >>> translated("The farmers grow barley.")
        'Berliy thi fermirs gruw.'
    """
    words = sentence.rstrip(".").translate(VOWELS).split()
    text = " ".join([words[-1], *(w.lower() for w in words[:1]), *words[1:-1]])
    return f"{text[:1].upper()}{text[1:]}."
