"""Texts, offsets and true answers of the questions of a pack that are judged."""

from functools import lru_cache

import numpy as np

from everyformer.data.packs.pack import Pack, needs
from everyformer.data.resident import starts_of
from everyformer.errors import FileFormatError

OF_CONTEXTS = ("context_lengths", "context_splits", "text_lengths")
OF_QUESTIONS = (
    "question_lengths", "question_contexts", "answer_first", "answer_last", "occurrences",
    "answer_lengths",
)  # fmt: skip
OF_BOTH = ("contexts", "questions", "text", "gaps", "widths", "answers")


class Texts:
    """What spans of tokens are in the text as it was given.

    Args:
        pack: As `check_arrays` lets it pass.
    """

    def __init__(self, pack: Pack) -> None:
        arrays = pack.arrays
        self._of_context = arrays["question_contexts"]
        self._text, self._answers = arrays["text"].tobytes(), arrays["answers"].tobytes()
        self._lengths = arrays["text_lengths"].astype(np.int64)
        self._text_starts = starts_of(self._lengths)
        has_text = self._lengths > 0
        self._tokens = np.where(has_text, arrays["context_lengths"].astype(np.int64), 0)
        self._token_starts = starts_of(self._tokens)
        self._gaps = arrays["gaps"].astype(np.int64)
        self._widths = arrays["widths"].astype(np.int64)
        self._own_answers = arrays["answer_lengths"].astype(np.int64)
        self._answer_starts = starts_of(self._own_answers)

    def span(self, question: int, first: int, last: int) -> str:
        """The text of the tokens first .. last of the context of a question."""
        text, begins, ends = self._context(int(self._of_context[question]))
        return text[begins[first] : ends[last]]

    def answers(self, question: int) -> list[str]:
        """The true answers."""
        start = self._answer_starts[question]
        raw = self._answers[start : start + self._own_answers[question]]
        return raw.decode().split("\0")[:-1]

    def context(self, question: int) -> str:
        """The whole context."""
        return self._context(int(self._of_context[question]))[0]

    @lru_cache(maxsize=8)  # noqa: B019 questions of one context follow each other
    def _context(self, number: int) -> tuple[str, np.ndarray, np.ndarray]:
        start = self._text_starts[number]
        text = self._text[start : start + self._lengths[number]].decode()
        token = self._token_starts[number]
        own = slice(token, token + self._tokens[number])
        gaps, widths = self._gaps[own], self._widths[own]
        ends = np.cumsum(gaps + widths)
        return text, ends - widths, ends


def check_arrays(pack: Pack) -> None:
    """Refuse a pack whose arrays are not of questions, or do not fit together.

    Raises:
        FileFormatError: Naming the first pair of arrays that do not.
    """
    needs(pack, *OF_CONTEXTS, *OF_QUESTIONS, *OF_BOTH, tokens=("contexts", "questions"))
    arrays = {name: array.astype(np.int64) for name, array in pack.arrays.items()}
    contexts, asked = arrays["context_lengths"], arrays["question_lengths"]
    judged = arrays["text_lengths"] > 0
    of_context = arrays["question_contexts"]
    facts = {
        "columns of contexts": len({len(arrays[name]) for name in OF_CONTEXTS}) == 1,
        "columns of questions": len({len(arrays[name]) for name in OF_QUESTIONS}) == 1,
        "contexts and their lengths": contexts.sum() == len(arrays["contexts"]),
        "questions and their lengths": asked.sum() == len(arrays["questions"]),
        "texts and their lengths": arrays["text_lengths"].sum() == len(arrays["text"]),
        "answers and their lengths": (
            arrays["answer_lengths"].sum() == len(arrays["answers"])
        ),
        "contexts": contexts.size > 0 and contexts.min() > 0,
        "questions": asked.size > 0 and asked.min() > 0,
    }
    if all(facts.values()):
        offsets = int(contexts[judged].sum())
        in_range = of_context.min() >= 0 and of_context.max() < len(contexts)
        facts["offsets"] = len(arrays["gaps"]) == len(arrays["widths"]) == offsets
        facts["contexts of questions"] = in_range
    if all(facts.values()):
        first, last = arrays["answer_first"], arrays["answer_last"]
        facts["answers and contexts"] = bool(
            ((first <= last) & (last < contexts[of_context])).all()
        )
    wrong = [name for name, holds in facts.items() if not holds]
    if wrong:
        msg = f"In the pack {pack.name!r} {', '.join(wrong)} do not fit together."
        raise FileFormatError(f"{msg} Make it anew with `everyformer data pack squad`.")
