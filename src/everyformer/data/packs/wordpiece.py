"""WordPiece: text to token ids, by a vocabulary with one piece on each line.

The pieces of BERT's uncased models: text is cleaned, lower-cased and freed of accents,
split at whitespace and punctuation, and each word is cut into the longest pieces that the
vocabulary has. Words such as "[MASK]" in a text are text here, not special tokens.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from everyformer.data.packs.reading import SPECIALS, tokeniser_of
from everyformer.errors import FileFormatError, TrainingError

BERT_UNCASED = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
"""The sha256 of the vocabulary of bert-base-uncased, 30,522 pieces."""

MOST_PIECES = 1 << 16


class Pieces(NamedTuple):
    """The pieces of one text: ids, and the characters start .. end - 1 each came from."""

    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class WordPiece:
    """A vocabulary, ready to cut texts.

    Args:
        vocabulary: The pieces; the id of a piece is its place.
        sha256: Of the file that they came from.
    """

    vocabulary: tuple[str, ...]
    sha256: str

    def __post_init__(self) -> None:
        """Build the tokeniser."""
        from_hub = tokenizers_for("WordPieces")
        ids = {piece: number for number, piece in enumerate(self.vocabulary)}
        model = from_hub.models.WordPiece(ids, unk_token="[UNK]")
        tokenizer: Any = from_hub.Tokenizer(model)
        tokenizer.normalizer = from_hub.normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = from_hub.pre_tokenizers.BertPreTokenizer()
        object.__setattr__(self, "_tokenizer", tokenizer)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        found = self._encoded(texts)
        return [one.ids for one in found]

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Token ids of each text, and where they came from in the text as it was given."""
        return [Pieces(one.ids, one.offsets) for one in self._encoded(texts)]

    def describe(self) -> dict[str, Any]:
        """As the header of a pack has it."""
        return tokeniser_of(self.sha256, self.vocabulary, SPECIALS)

    def _encoded(self, texts: Sequence[str]) -> list[Any]:
        tokenizer: Any = vars(self)["_tokenizer"]
        return tokenizer.encode_batch(list(texts), add_special_tokens=False)


def tokenizers_for(pieces: str) -> Any:
    """Hugging Face's library; one thread, as others share the machine.

    Raises:
        TrainingError: If it is not installed.
    """
    if find_spec("tokenizers") is None:
        msg = (
            f"Texts are cut into {pieces} by Hugging Face tokenizers, which is not "
            "installed. Install it: pip install 'everyformer[train]'."
        )
        raise TrainingError(msg)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers


def read_vocabulary(path: Path, *, sha256: str | None = BERT_UNCASED) -> WordPiece:
    """The WordPieces of a file `vocab.txt`.

    Args:
        path: One piece on each line.
        sha256: What the file must have; None for any.

    Raises:
        FileFormatError: If it is another vocabulary, or not one at all.
    """
    raw = path.read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    if sha256 is not None and digest != sha256:
        msg = (
            f"{path} is another vocabulary: its sha256 begins with {digest[:12]}, that of "
            f"bert-base-uncased with {sha256[:12]}. Token ids would mean other words; give "
            "the vocab.txt of bert-base-uncased (30,522 lines)."
        )
        raise FileFormatError(msg)
    try:
        pieces = tuple(raw.decode().removesuffix("\n").split("\n"))
    except UnicodeDecodeError as error:
        msg = f"{path} is not text in UTF-8. Give a vocab.txt with one piece on each line."
        raise FileFormatError(msg) from error
    return checked(pieces, digest, str(path))


def checked(pieces: tuple[str, ...], digest: str, name: str) -> WordPiece:
    """A vocabulary that has the special tokens, no piece twice, and fits two bytes.

    Raises:
        FileFormatError: If not.
    """
    missing = [one for one in SPECIALS if one not in pieces]
    if missing or len(set(pieces)) != len(pieces) or len(pieces) > MOST_PIECES:
        msg = (
            f"{name} has {len(pieces)} pieces, {len(set(pieces))} of them different, and "
            f"lacks {missing or 'nothing'}. A vocabulary has {', '.join(SPECIALS)}, every "
            f"piece once, and at most {MOST_PIECES}."
        )
        raise FileFormatError(msg)
    return WordPiece(pieces, digest)
