"""Packs of words whose header is believed, and whose numbers are not what they say."""

import numpy as np
import pytest

from everyformer.data.packs.excerpt import words_excerpt
from everyformer.data.packs.pack import Pack, new_pack
from everyformer.data.streams import Reading, Streams
from everyformer.errors import FileFormatError

READINGS = (Reading("nats", 8, 8),)
KEYS = ("name", "licence", "tokeniser", "sources", "counts")


def changed(**arrays: np.ndarray) -> Pack:
    pack = words_excerpt()
    return new_pack({key: pack.header[key] for key in KEYS}, {**pack.arrays, **arrays})


def test_negative_words() -> None:
    """Four bytes hold them, and they would count from the end of the vectors."""
    text = words_excerpt().arrays["train"].astype(np.int32)
    text[7] = -3
    with pytest.raises(FileFormatError, match="has the token id -3"):
        Streams(changed(train=text), 4, 8, 0, READINGS)


@pytest.mark.parametrize("starts", [[5, 0], [3, 10], [0, 0], [0, 10**6], [-1, 4], []])
def test_articles_that_begin_nowhere(starts: list[int]) -> None:
    """The bootstrap draws by article: numbers that do not rise would mix them."""
    pack = changed(test_articles=np.array(starts, np.int32))
    with pytest.raises(FileFormatError, match="articles of the test text"):
        Streams(pack, 4, 8, 0, READINGS)


def test_a_text_without_words() -> None:
    pack = changed(validation=np.zeros(0, np.uint16))
    with pytest.raises(FileFormatError, match="articles of the validation text"):
        Streams(pack, 4, 8, 0, READINGS)
