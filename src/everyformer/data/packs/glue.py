"""Five tasks of GLUE as a pack: CoLA, SST-2, MRPC, RTE and STS-B.

Test examples are the development sets of GLUE; of MRPC, whose development set is not marked
in its files, the official test set. A tenth of the training examples, whole first texts in
the order of their sha1, is held out for choosing settings. Labels are classes; those of
STS-B are thousandths, from 0 to 5,000.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from everyformer.data.packs.nli import LEFT_OUT, held_out, tokenised
from everyformer.data.packs.wordpiece import WordPiece
from everyformer.data.randomness import SPLITS
from everyformer.errors import FileFormatError
from everyformer.progress import Progress, no_progress

THOUSANDTHS = 1000
MOST_SCORE = 5 * THOUSANDTHS


@dataclass(frozen=True)
class Table:
    """Where a task's files have what.

    Attributes:
        train: Files of training examples.
        test: Files of test examples.
        heading: Whether the first line names the columns.
        label: Column of the label.
        texts: Columns of the texts, one or two.
        classes: Labels as they are written; None for scores.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    heading: bool
    label: int
    texts: tuple[int, ...]
    classes: tuple[str, ...] | None


TABLES: Mapping[str, Table] = {
    "cola": Table(
        ("CoLA/in_domain_train.tsv",),
        ("CoLA/in_domain_dev.tsv", "CoLA/out_of_domain_dev.tsv"),
        heading=False, label=1, texts=(3,), classes=("0", "1"),
    ),
    "sst-2": Table(
        ("SST-2/train.tsv",), ("SST-2/dev.tsv",),
        heading=True, label=1, texts=(0,), classes=("0", "1"),
    ),
    "mrpc": Table(
        ("MRPC/msr_paraphrase_train.txt",), ("MRPC/msr_paraphrase_test.txt",),
        heading=True, label=0, texts=(3, 4), classes=("0", "1"),
    ),
    "rte": Table(
        ("RTE/train.tsv",), ("RTE/dev.tsv",),
        heading=True, label=3, texts=(1, 2), classes=("not_entailment", "entailment"),
    ),
    "sts-b": Table(
        ("STS-B/sts-train.csv",), ("STS-B/sts-dev.csv",),
        heading=False, label=4, texts=(5, 6), classes=None,
    ),
}  # fmt: skip
"""The tasks, in the order of the pack."""


def rows(path: Path, table: Table) -> Iterator[tuple[str, str, int]]:
    """First text, second text or nothing, and label of each example.

    Raises:
        FileFormatError: If a line is not an example.
    """
    lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    for number, line in enumerate(lines[table.heading :], 1 + table.heading):
        cells = line.rstrip("\r").split("\t")
        if len(cells) <= max(table.label, *table.texts):
            raise _wrong(path, number, f"has {len(cells)} cells")
        texts = [cells[place] for place in table.texts]
        label = _label(cells[table.label], table.classes)
        if label is None:
            raise _wrong(path, number, f"has the label {cells[table.label]!r}")
        yield texts[0], texts[1] if len(texts) == 2 else "", label


def _label(text: str, classes: tuple[str, ...] | None) -> int | None:
    if classes is not None:
        return classes.index(text) if text in classes else None
    try:
        found = round(THOUSANDTHS * float(text))
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found <= MOST_SCORE else None


def _wrong(path: Path, number: int, what: str) -> FileFormatError:
    return FileFormatError(
        f"Line {number} of {path} {what}: it is not an example. Unpack the file again."
    )


def glue_arrays(
    folder: Path, wordpiece: WordPiece, *, progress: Progress = no_progress
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays of a pack of GLUE, and its counts.

    For each task `TASK_tokens` (uint16), first and second text of every example one after
    the other; `TASK_first` and `TASK_second` (uint16) their lengths; `TASK_labels` (uint16)
    and `TASK_splits` (uint8).

    Args:
        folder: With the folders CoLA, SST-2, MRPC, RTE and STS-B.
        wordpiece: The vocabulary.
        progress: Called now and then.
    """
    arrays: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for done, (task, table) in enumerate(TABLES.items()):
        progress("tokenise", done, len(TABLES))
        train = [one for name in table.train for one in rows(folder / name, table)]
        test = [one for name in table.test for one in rows(folder / name, table)]
        kept = held_out([one[0] for one in train], round(len(train) / 10))
        splits = np.append(kept, np.full(len(test), SPLITS.index("test"), np.uint8))
        examples = [*train, *test]
        tokens, first, second = tokenised(examples, wordpiece)
        arrays |= {
            f"{task}_tokens": tokens,
            f"{task}_first": first,
            f"{task}_second": second,
            f"{task}_labels": np.array([one[2] for one in examples], np.uint16),
            f"{task}_splits": splits.astype(np.uint8),
        }
        counts |= {
            f"{task}_{split}": int((splits == k).sum()) for k, split in enumerate(SPLITS)
        }
        counts[f"{task}_left_out"] = int((splits == LEFT_OUT).sum())
    return arrays, counts
