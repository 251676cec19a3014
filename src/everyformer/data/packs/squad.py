"""Questions about paragraphs: SQuAD 1.1 as a pack, every context stored once.

A training answer becomes the WordPieces that cover its characters. Texts, offsets and
answers are kept where predictions are judged: on the development set and on the training
articles that are held out for choosing settings (5 %, by sha1 of their titles).
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.data.packs.wordpiece import Pieces, WordPiece
from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError
from everyformer.progress import Progress, no_progress

HELD_OUT = 20
"""One training article of so many is for validation."""

AT_ONCE = 200
TRAIN, VALIDATION, TEST = range(len(SPLITS))


@dataclass
class _Columns:
    """What becomes the arrays, gathered paragraph by paragraph."""

    contexts: list[list[int]] = field(default_factory=list[list[int]])
    offsets: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    texts: list[str] = field(default_factory=list[str])
    splits: list[int] = field(default_factory=list[int])
    questions: list[list[int]] = field(default_factory=list[list[int]])
    of_context: list[int] = field(default_factory=list[int])
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    occurrences: list[int] = field(default_factory=list[int])
    answers: list[list[str]] = field(default_factory=list[list[str]])


def articles(path: Path) -> list[dict[str, Any]]:
    """The articles of a file of SQuAD 1.1.

    Raises:
        FileFormatError: If it is not such a file.
    """
    try:
        found = json.loads(path.read_bytes())["data"]
        for article in found:
            check_article(article)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        msg = (
            f"{path} is not a file of SQuAD 1.1 ({type(error).__name__}: {error}). "
            "Unpack it again."
        )
        raise FileFormatError(msg) from error
    return found


def check_article(article: Any) -> None:
    """Refuse an article with an answer that is not where it says.

    Raises:
        ValueError: If there is one.
    """
    if not isinstance(article["title"], str):
        msg = "an article has no title"
        raise ValueError(msg)
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            for answer in question["answers"]:
                start = answer["answer_start"]
                stop = start + len(answer["text"])
                if start < 0 or paragraph["context"][start:stop] != answer["text"]:
                    msg = f"the answer {answer['text'][:40]!r} is not at character {start}"
                    raise ValueError(msg)


def is_held_out(titles: Sequence[str], one_of: int = HELD_OUT) -> list[bool]:
    """Which articles are for validation: those whose titles have the smallest sha1.

    Example:
        >>> sum(is_held_out([str(k) for k in range(442)]))
        22
    """
    order = sorted(titles, key=lambda one: hashlib.sha1(one.encode()).digest())
    chosen = set(order[: len(titles) // one_of])
    return [title in chosen for title in titles]


def covering(pieces: Pieces, start: int, stop: int) -> tuple[int, int]:
    """First and last piece that touch the characters start .. stop - 1.

    Raises:
        ValueError: If none does.
    """
    begins = [begin for begin, _ in pieces.offsets]
    ends = [end for _, end in pieces.offsets]
    first, last = bisect_right(ends, start), bisect_left(begins, stop) - 1
    if first > last:
        msg = f"no token lies in the characters {start} to {stop - 1}"
        raise ValueError(msg)
    return first, last


def squad_arrays(
    train: Path,
    dev: Path,
    wordpiece: WordPiece,
    *,
    one_of: int = HELD_OUT,
    progress: Progress = no_progress,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays of a pack of questions, and its counts.

    Of contexts: `contexts` (tokens), `context_lengths`, `context_splits`; where judged also
    `text` (UTF-8), `text_lengths` (0 for contexts without one), `gaps` and `widths`
    (characters between tokens, and of each token). Of questions: `questions`,
    `question_lengths`, `question_contexts`, `answer_first`, `answer_last` (tokens of the
    context), `occurrences` of the answer's text, and where judged `answers` (UTF-8, each
    ended by a byte 0) and `answer_lengths` (bytes of all answers of a question).
    """
    columns = _Columns()
    given = articles(train)
    held = is_held_out([article["title"] for article in given], one_of)
    listed = [
        (one, VALIDATION if out else TRAIN) for one, out in zip(given, held, strict=True)
    ]
    listed += [(one, TEST) for one in articles(dev)]
    for number, (article, split) in enumerate(listed):
        progress("tokenise", number, len(listed))
        paragraphs = article["paragraphs"]
        for start in range(0, len(paragraphs), AT_ONCE):
            _add(columns, paragraphs[start : start + AT_ONCE], split, wordpiece)
    return _arrays(columns), _counts(columns)


def _add(columns: _Columns, given: list[Any], split: int, wordpiece: WordPiece) -> None:
    contexts = wordpiece.pieces([one["context"] for one in given])
    asked = wordpiece.ids([qa["question"] for one in given for qa in one["qas"]])
    of_all = iter(asked)
    for paragraph, pieces in zip(given, contexts, strict=True):
        columns.contexts.append(pieces.ids)
        columns.splits.append(split)
        judged = split != TRAIN
        columns.texts.append(paragraph["context"] if judged else "")
        columns.offsets += pieces.offsets if judged else []
        for question in paragraph["qas"]:
            answer = question["answers"][0]
            start = answer["answer_start"]
            columns.questions.append(next(of_all))
            columns.of_context.append(len(columns.contexts) - 1)
            columns.spans.append(covering(pieces, start, start + len(answer["text"])))
            columns.occurrences.append(min(answer.get("occurrences", 1), 255))
            texts = dict.fromkeys(one["text"] for one in question["answers"])
            columns.answers.append(list(texts) if judged else [])


def _arrays(columns: _Columns) -> dict[str, np.ndarray]:
    texts = [text.encode() for text in columns.texts]
    answers = [b"".join(one.encode() + b"\0" for one in own) for own in columns.answers]
    gaps, widths = _gaps(columns)
    return {
        "contexts": np.array(list(chain(*columns.contexts)), np.uint16),
        "context_lengths": np.array([len(one) for one in columns.contexts], np.uint16),
        "context_splits": np.array(columns.splits, np.uint8),
        "text": np.frombuffer(b"".join(texts), np.uint8),
        "text_lengths": np.array([len(text) for text in texts], np.uint16),
        "gaps": gaps,
        "widths": widths,
        "questions": np.array(list(chain(*columns.questions)), np.uint16),
        "question_lengths": np.array([len(one) for one in columns.questions], np.uint16),
        "question_contexts": np.array(columns.of_context, np.int32),
        "answer_first": np.array([span[0] for span in columns.spans], np.uint16),
        "answer_last": np.array([span[1] for span in columns.spans], np.uint16),
        "occurrences": np.array(columns.occurrences, np.uint8),
        "answers": np.frombuffer(b"".join(answers), np.uint8),
        "answer_lengths": np.array([len(own) for own in answers], np.uint16),
    }


def _gaps(columns: _Columns) -> tuple[np.ndarray, np.ndarray]:
    """Characters between the end of one token and the next; and those of each token."""
    gaps, widths = list[int](), list[int]()
    last, offsets = 0, iter(columns.offsets)
    for ids, text in zip(columns.contexts, columns.texts, strict=True):
        last = 0
        for _ in ids if text else ():
            start, stop = next(offsets)
            gaps.append(start - last)
            widths.append(stop - start)
            last = stop
    return np.array(gaps, np.uint16), np.array(widths, np.uint16)


def _counts(columns: _Columns) -> dict[str, int]:
    splits = np.array(columns.splits)
    of_question = splits[columns.of_context]
    counts = {f"{name}_contexts": int((splits == k).sum()) for k, name in enumerate(SPLITS)}
    for k, name in enumerate(SPLITS):
        counts[f"{name}_questions"] = int((of_question == k).sum())
    clear = np.array(columns.occurrences) == 1
    counts["ambiguous_train_answers"] = int((~clear & (of_question == TRAIN)).sum())
    return counts
