"""Which packs there are: what for, made from which files, and under which licence."""

from dataclasses import dataclass

from everyformer.data.packs.wordpiece import BERT_UNCASED
from everyformer.errors import InputError

VOCABULARY = "bert-vocab/vocab.txt"
MIXERS, LANGUAGE = "mixers-bert", "urpe-wikitext"
ZINC = "repositories MIT; ZINC is free to use, larger parts not to be redistributed"
WIKIPEDIA = "CC BY-SA 3.0 and GFDL (Wikipedia contributors); vocabulary Apache-2.0"
WORDS = "CC BY-SA 3.0 and GFDL (Wikipedia contributors, Merity et al. 2016)"
SHARDS = {
    "enwiki-2015.shard0.txt": (
        "9013ff88016e21eb594396cd71f3a98a82b893528375f80dcaca0769a78ee255"
    ),
    "enwiki-2015.shard1.txt": (
        "910186c8c6958b943be8969c7e5733347bf95bdd8484529a96a06b032414af2e"
    ),
}
WIKITEXT = {
    "wikitext-2/wiki.train.tokens": (
        "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"
    ),
    "wikitext-2/wiki.valid.tokens": (
        "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"
    ),
    "wikitext-2/wiki.test.tokens": (
        "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"
    ),
}
"""WikiText-2, whose training text is the vocabulary of all packs of words."""


@dataclass(frozen=True)
class Recipe:
    """A pack that can be made.

    Attributes:
        name: Of the pack; its file is NAME.pack.xz.
        kind: Which reader makes it: enwiki, words, wikitext, nli, squad
            or molecules.
        about: What it holds.
        files: What it is made from: paths below the folder given, and their sha256.
        licence: Of its content.
        mebibytes: Size of the file, about.
        minutes: To make it on one core, about.
        experiments: Which need it.
        tokens: The most it holds, if it is cut.
    """

    name: str
    kind: str
    about: str
    files: dict[str, str]
    licence: str
    mebibytes: int
    minutes: int
    experiments: tuple[str, ...]
    tokens: int | None = None


RECIPES = {
    one.name: one
    for one in (
        Recipe(
            "enwiki-wp",
            "enwiki",
            "English Wikipedia of May 2015, 14,860 articles, 57M WordPieces",
            {VOCABULARY: BERT_UNCASED, **SHARDS},
            WIKIPEDIA,
            56,
            6,
            (MIXERS,),
        ),
        Recipe(
            "enwiki-wp-48m",
            "enwiki",
            "the same, its first 48M WordPieces",
            {VOCABULARY: BERT_UNCASED, **SHARDS},
            WIKIPEDIA,
            47,
            5,
            (MIXERS,),
            tokens=48_000_000,
        ),
        Recipe(
            "enwiki-words",
            "words",
            "English Wikipedia of May 2015 in the words of WikiText-2, 52M; valid and test "
            "texts are those of WikiText-2",
            {**WIKITEXT, **SHARDS},
            WORDS,
            51,
            8,
            (LANGUAGE,),
        ),
        Recipe(
            "enwiki-words-12m",
            "words",
            "the same, its first 12M words",
            {**WIKITEXT, **SHARDS},
            WORDS,
            12,
            2,
            (LANGUAGE,),
            tokens=12_000_000,
        ),
        Recipe(
            "wikitext-2",
            "wikitext",
            "WikiText-2: 2,088,628 training, 217,646 validation, 245,569 test words",
            WIKITEXT,
            "CC BY-SA 3.0 (Wikipedia contributors, Merity et al. 2016)",
            3,
            1,
            (LANGUAGE,),
        ),
        Recipe(
            "nli",
            "nli",
            "MNLI (45,177 training pairs, matched development set) and SNLI (78,023 pairs)",
            {
                VOCABULARY: BERT_UNCASED,
                "mnli/train_subset.tsv": (
                    "c3d5b51544096d6790e9c0e118a4c50848b411bc9c1ba144d37479379c9871df"
                ),
                "snli-subset/snli_subset.tsv": (
                    "f015eb8cf45b19366f6e24a93bcf0d1eaa0fb4d0f9be3d52cb25213b34c73e99"
                ),
                "mnli/dev_matched.tsv": (
                    "88e83a4bc106bea3d139f1b5dfe3a243158295b59eccfc22c7f0d12d872a21d6"
                ),
            },
            "MNLI: OANC, CC BY and CC BY-SA by source; SNLI: CC BY-SA 4.0",
            3,
            1,
            (MIXERS,),
        ),
        Recipe(
            "squad",
            "squad",
            "SQuAD 1.1: 87,599 training and 10,570 development questions",
            {
                VOCABULARY: BERT_UNCASED,
                "squad/train-v1.1.json": (
                    "e4a11645879f51795cfb9e12534f3ca4469326c0559aad8fd183e4184054fb70"
                ),
                "squad/dev-v1.1.json": (
                    "737c4efd12f373b115b7c7ba92312f32de07325441377c4c11b93810f45a4f30"
                ),
            },
            "CC BY-SA 4.0",
            6,
            1,
            (MIXERS,),
        ),
        Recipe(
            "zinc12k",
            "molecules",
            "ZINC, the 12,000 molecules of Benchmarking GNNs; targets recomputed",
            {
                "zinc/zinc12k.csv": (
                    "8c1d1e03c4434a36cbac4c55660616f9ece0d6e51e1f715ba44f5b2339223f06"
                ),
            },
            ZINC,
            1,
            1,
            ("urpe-zinc",),
        ),
        Recipe(
            "zinc250k",
            "molecules",
            "ZINC, all 249,456 molecules of JT-VAE; targets recomputed",
            {
                "zinc/zinc250k_train.txt": (
                    "a3b0ec77d45a6d5cc6884532145de6fc310f4a6da77d25babcd9449e03a027c7"
                ),
                "zinc/zinc250k_valid.txt": (
                    "ad7d9c2bfebd93ffda6c32ed0e89d1714ae1f592f6340c0e6ae057521bbae30d"
                ),
                "zinc/zinc250k_test.txt": (
                    "31f6ce92914814db33bf0dbfc45f3836193e27cb80a59c54d88bc05a1f5fab83"
                ),
            },
            ZINC,
            5,
            15,
            ("urpe-zinc",),
        ),
        Recipe(
            "qm9-gap",
            "molecules",
            "QM9, 130,831 molecules with the gap of their orbitals in eV",
            {
                "qm9-gap/qm9_gap.csv": (
                    "ebebe8c90d4d32f2ed9d5c4221e3fe5c1004627f3ccdb713cce39fc19eac7c81"
                ),
            },
            "CC0 (QM9); qm9pack MIT",
            2,
            1,
            ("urpe-qm9",),
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        InputError: If no pack has that name.
    """
    if name not in RECIPES:
        msg = f"{name!r} is not a pack. Choose one of {', '.join(RECIPES)}."
        raise InputError(msg)
    return RECIPES[name]
