"""BLEU and chrF of translations that runs have kept, by sacreBLEU where it is installed.

The machine that translates need not have the library: `--show` scores what is missing.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.data.packs.pack import Pack
from everyformer.data.translation import Translations
from everyformer.errors import FileFormatError, TrainingError
from everyformer.experiments.arrays import name_of
from everyformer.experiments.cell import Size
from everyformer.experiments.sparse_translation.packs import pairs_of
from everyformer.experiments.sparse_translation.sizes import SCALES
from everyformer.experiments.sparse_translation.texts import SETS, chosen, from_array


def completed(
    results: Sequence[dict[str, Any]],
    scores: Mapping[str, Mapping[str, np.ndarray]],
    size: Size,
    data: Path | None,
) -> bool:
    """Score finished results that have texts and no BLEU yet; whether any were scored.

    Nothing is scored where sacreBLEU or the pack of the references is not there.

    Raises:
        FileFormatError: If the pack is another one than that of the results.
    """
    missing = [r for r in results if r["complete"] and "translated" not in r["more"]]
    missing = [r for r in missing if "texts_test" in scores.get(name_of(r["labels"]), {})]
    if not missing or find_spec("sacrebleu") is None:
        return False
    try:
        pack = pairs_of(size, data, SCALES[size].pieces)
    except TrainingError:
        return False
    for result in missing:
        settings, cell = result["settings"], name_of(result["labels"])
        if settings["task"]["pack_sha256"] != pack.sha256:
            msg = (
                f"{cell} was trained on the pack "
                f"{settings['task']['pack_sha256'][:12]}, and {pack.name} is "
                f"{pack.sha256[:12]}: its references are others. Give that pack (--data)."
            )
            raise FileFormatError(msg)
        task, count = _task(pack, settings["task"]), settings["model"]["translated"]
        kept = scores[cell]
        found: dict[str, Any] = {}
        for name in SETS:
            if f"texts_{name}" in kept:
                said = from_array(kept[f"texts_{name}"])
                found[name] = scored(said, task.texts(chosen(task, name, count)))
        result["more"]["translated"] = found
    return True


def scored(said: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """BLEU (13a, mixed case) and chrF of texts, with the signatures of both.

    Raises:
        FileFormatError: If there is not one text for each reference.
    """
    if len(said) != len(references):
        msg = (
            f"{len(said)} translations are stored for {len(references)} references: the "
            "files are not of one run. Move them, and run the cell again."
        )
        raise FileFormatError(msg)
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(tokenize="13a", lowercase=False), CHRF()
    texts, against = list(said), [list(references)]
    return {
        "bleu": bleu.corpus_score(texts, against).score,
        "chrf": chrf.corpus_score(texts, against).score,
        "texts": len(texts),
        "signature": {
            "bleu": str(bleu.get_signature()),
            "chrf": str(chrf.get_signature()),
        },
    }


def _task(pack: Pack, described: Mapping[str, Any]) -> Translations:
    """The pairs as the run read them: which of them were translated follows from that."""
    lengths, evaluated = tuple(described["lengths"]), described["evaluated"]
    return Translations(pack, described["seed"], lengths=lengths, evaluated=evaluated)
