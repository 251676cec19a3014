"""Trained encoders compared: how each tells the contexts of a word apart, by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table

from everyformer import figures
from everyformer.data.packs.excerpt import excerpt, vocabulary
from everyformer.data.packs.pack import Pack, read_pack
from everyformer.errors import TrainingError
from everyformer.experiments.mixers_bert.cells import TEXT
from everyformer.experiments.needed_packs import first_pack
from everyformer.train.weights_from import trained_encoder
from everyformer.train.word_contexts import LayerContexts, word_contexts


@dataclass(frozen=True)
class RunContexts:
    """What was measured of one run.

    Attributes:
        name: Of its folder.
        layers: The embeddings, and each block.
        words: The words that were followed, as text where the vocabulary is known.
        contexts: How many contexts there were.
        tokens: Tokens of each.
    """

    name: str
    layers: tuple[LayerContexts, ...]
    words: tuple[str, ...]
    contexts: int
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return dict(vars(self)) | {"layers": [layer.to_json() for layer in self.layers]}


def contexts_of(
    folder: Path, data: Path | None = None, *, contexts: int = 24, words: int = 8
) -> RunContexts:
    """Follow the most frequent words of the test text through the encoder of a run.

    Contexts are windows of that text at equal distances, as long as those that the run was
    trained with.

    Args:
        folder: Of a run that has ended, as `everyformer reproduce` leaves it.
        data: Folder of the packs that it read; None for the excerpts.
        contexts: How many windows.
        words: How many words.

    Raises:
        TrainingError: If the run left no encoder, read another text, or the text is too
            short.
    """
    encoder, run = trained_encoder(folder)
    pack = _text(folder, run, data)
    n = min(encoder.config.max_len, run["task"].get("seq_len", encoder.config.max_len))
    text = pack.arrays["test"].astype(np.int64)
    if min(contexts, words) < 2 or len(text) < contexts * n:
        msg = (
            f"{contexts} contexts of {n} tokens and {words} words were asked for, and the "
            f"test text of {pack.name} has {len(text):,} tokens. Ask for at least two of "
            "each, and for contexts that do not overlap."
        )
        raise TrainingError(msg)
    starts = np.arange(contexts) * (len(text) - n) // (contexts - 1)
    windows = text[starts[:, None] + np.arange(n)]
    windows[:, 0], windows[:, -1] = (pack.specials[name] for name in ("[CLS]", "[SEP]"))
    found, counts = np.unique(text, return_counts=True)
    known = vocabulary().vocabulary if data is None else ()
    by_count = found[np.argsort(-counts, kind="stable")].tolist()
    # Neither parts of words nor signs; every token where the vocabulary is not known.
    spoken = [w for w in by_count if not known or known[w].isalpha()]
    chosen = [w for w in spoken if w not in pack.specials.values()][:words]
    layers = word_contexts(encoder, torch.from_numpy(windows), chosen)
    told = tuple(known[w] if known else str(w) for w in chosen)
    return RunContexts(folder.name, tuple(layers), told, contexts, n)


def _text(folder: Path, run: dict[str, Any], data: Path | None) -> Pack:
    """The pack of running text, which must be that of the run if it read one."""
    if data is None:
        pack = excerpt(TEXT[0])
    else:
        there = first_pack(data, TEXT)
        if there is None:
            msg = (
                f"{data} holds neither {' nor '.join(TEXT)}. Give the folder of the packs."
            )
            raise TrainingError(msg)
        pack = read_pack(there)
    task = run.get("task", {})
    read = task.get("pack")
    if task.get("task") != "masked windows" or task.get("pack_sha256") != pack.sha256:
        msg = (
            f"The run in {folder} is {task.get('task')!r} on {read!r}, and the contexts "
            f"would come from {pack.name!r}: its tokens may mean other words. Give a run "
            "of pre-training (mlm_..), and with --data the packs that it read."
        )
        raise TrainingError(msg)
    return pack


def table(found: Sequence[RunContexts]) -> Table:
    """A row for each run and layer."""
    first = found[0]
    shown = Table(
        title=f"{len(first.words)} words in {first.contexts} contexts of {first.tokens} "
        f"tokens: {', '.join(first.words)}",
        title_justify="left",
    )
    for name in (
        "run",
        "layer",
        "mixer",
        "gap",
        "by context",
        "by word",
        "share",
    ):
        shown.add_column(name, justify="left" if name in ("run", "mixer") else "right")
    for run in found:
        for layer in run.layers:
            gap = f"{layer.gap_sampled:.2g}" if layer.separating else "collision"
            shown.add_row(
                run.name if not layer.layer else "",
                str(layer.layer),
                layer.mixer,
                gap,
                f"{layer.by_context_sampled:.3f}",
                f"{layer.by_word_sampled:.3f}",
                f"{layer.share_of_context:.0%}",
            )
    return shown


@figures.styled
def picture(found: Sequence[RunContexts], path: Path) -> None:
    """Share of the context and gap against the layer, a line for each run."""
    figure = Figure(figsize=(9.5, 3.6))
    left, right = figure.subplots(1, 2)
    gaps = [layer.gap_sampled for run in found for layer in run.layers if layer.separating]
    zero = figures.place_of_zero(gaps)
    for place, run in enumerate(found):
        layers, look = range(len(run.layers)), figures.curve(place, len(found))
        shares = [100 * layer.share_of_context for layer in run.layers]
        left.plot(layers, shares, label=run.name, **look)
        gap = [layer.gap_sampled if layer.separating else 0.0 for layer in run.layers]
        figures.plot_with_zeros(
            right, np.array(layers), np.array(gap), zero, place, len(found), label=run.name
        )
    figures.title(left, "one word, many contexts")
    figures.title(right, "gap (Definition 5.1); 0 is a collision")
    left.set(xlabel="layer", ylabel="share of the context, %")
    right.set(xlabel="layer", ylabel="gap / largest state")
    figures.logarithmic(right.yaxis)
    figures.mark_zero(right.yaxis, zero)
    figures.whole_numbers(left.xaxis, right.xaxis)
    figures.one_legend(figure)
    figures.write(figure, path)
