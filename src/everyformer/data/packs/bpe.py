"""Byte-level byte pair encoding: text of any language to token ids, and back again.

A text is cut into words with the space before each, its UTF-8 bytes are written as letters
(GPT-2's table), and the most frequent pairs of neighbours are joined, in the order in which
they were learnt (Sennrich et al. 2016). Every text has ids, and the ids give back the text
character by character: nothing is normalised, and there is no unknown token.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from everyformer.data.packs.reading import BEGIN, END, PAD, tokeniser_of
from everyformer.data.packs.wordpiece import tokenizers_for
from everyformer.errors import FileFormatError

SPECIAL = (PAD, BEGIN, END)
"""Their ids are 0, 1 and 2."""

MOST_BYTES = 1 << 24
AT_ONCE = 2000


@dataclass(frozen=True)
class BytePairs:
    """A vocabulary of byte pairs.

    Args:
        pieces: The id of a piece is its place; the first are `SPECIAL`.
        merges: Which two pieces are joined, the first first.
    """

    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        """Refuse pieces that occur twice, that no byte makes, or that are not there.

        Raises:
            FileFormatError: If so.
        """
        known = set(self.pieces)
        letters = set(letters_of_bytes())
        made = {a + b for a, b in self.merges}
        good = (
            self.pieces[: len(SPECIAL)] == SPECIAL
            and len(known) == len(self.pieces) <= 1 << 16
            and letters <= known
            and known == {*SPECIAL, *letters, *made}
            and all(a in known and b in known for a, b in self.merges)
        )
        if not good:
            msg = (
                f"{len(self.pieces):,} pieces ({len(known):,} different) and "
                f"{len(self.merges):,} merges are not a vocabulary of byte pairs: it has "
                f"{', '.join(SPECIAL)}, all 256 bytes, and what merges make, each once. "
                "Make the pack anew."
            )
            raise FileFormatError(msg)

    @cached_property
    def sha256(self) -> str:
        """Of pieces and merges."""
        return hashlib.sha256(self.to_array().tobytes()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """As the header of a pack has it."""
        return tokeniser_of(self.sha256, self.pieces, SPECIAL)

    def to_array(self) -> np.ndarray:
        """As a pack holds it: the bytes of a JSON text."""
        told = {"pieces": self.pieces, "merges": self.merges}
        text = json.dumps(told, ensure_ascii=True, separators=(",", ":"))
        return np.frombuffer(text.encode(), np.uint8)

    @classmethod
    def from_array(cls, array: np.ndarray, sha256: str) -> "BytePairs":
        """The vocabulary of a pack, if it is the one that its header names.

        Raises:
            FileFormatError: If it is another one, or none.
        """
        raw = array.tobytes()
        own = hashlib.sha256(raw).hexdigest()
        if own != sha256 or len(raw) > MOST_BYTES:
            msg = (
                f"The vocabulary in the pack has the sha256 {own[:12]}, its header says "
                f"{sha256[:12]}: token ids would be read as other words. Make it anew."
            )
            raise FileFormatError(msg)
        try:
            told = json.loads(raw)
            merges = tuple((str(a), str(b)) for a, b in told["merges"])
            return cls(tuple(str(one) for one in told["pieces"]), merges)
        except (ValueError, KeyError, TypeError) as error:
            msg = f"The pack holds no vocabulary of byte pairs ({error}). Make it anew."
            raise FileFormatError(msg) from error

    def ids(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Token ids of each text, without special tokens."""
        for start in range(0, len(texts), AT_ONCE):
            some = list(texts[start : start + AT_ONCE])
            found = self._tokenizer.encode_batch(some, add_special_tokens=False)
            yield from (one.ids for one in found)

    def text(self, ids: Iterable[int]) -> str:
        """What the ids say; special tokens say nothing, broken characters are replaced.

        Raises:
            FileFormatError: If an id is not in the vocabulary.
        """
        values, found = _bytes_of_letters(), bytearray()
        for one in ids:
            if not 0 <= one < len(self.pieces):
                msg = f"The token id {one} is beyond {len(self.pieces)} pieces."
                raise FileFormatError(msg)
            if one >= len(SPECIAL):
                found += bytes(values[letter] for letter in self.pieces[one])
        return found.decode(errors="replace")

    @cached_property
    def _tokenizer(self) -> Any:
        from_hub = tokenizers_for("byte pairs")
        numbers = {piece: number for number, piece in enumerate(self.pieces)}
        model = from_hub.models.BPE(vocab=numbers, merges=list(self.merges))
        tokenizer: Any = from_hub.Tokenizer(model)
        tokenizer.pre_tokenizer = from_hub.pre_tokenizers.ByteLevel(add_prefix_space=False)
        return tokenizer


def learnt(texts: Iterable[str], size: int) -> BytePairs:
    """The vocabulary of `size` pieces that training texts give; the same each time."""
    from_hub = tokenizers_for("byte pairs")
    tokenizer: Any = from_hub.Tokenizer(from_hub.models.BPE())
    tokenizer.pre_tokenizer = from_hub.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = from_hub.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=from_hub.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    numbers: dict[str, int] = model["vocab"]
    merges = (
        tuple(one.split(" ")) if isinstance(one, str) else one for one in model["merges"]
    )
    return BytePairs(
        tuple(sorted(numbers, key=lambda piece: numbers[piece])),
        tuple((a, b) for a, b in merges),
    )


@lru_cache
def letters_of_bytes() -> str:
    """GPT-2's letter for each byte: printable ones stand for themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    found, beyond = list[str](), 256
    for byte in range(256):
        found.append(chr(byte if byte in printable else beyond))
        beyond += byte not in printable
    return "".join(found)


@lru_cache
def _bytes_of_letters() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(letters_of_bytes())}
