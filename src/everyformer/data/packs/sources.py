"""Which packs there are: what for, made from which files, and under which licence."""

from dataclasses import dataclass
from pathlib import Path

from everyformer.data.packs.wordpiece import BERT_UNCASED
from everyformer.errors import InputError

VOCABULARY = "bert-vocab/vocab.txt"
MOST_TOKENS = 1 << 30
CUT = ("enwiki", "words", "novels", "translation")
"""Kinds of packs that may hold a part of their text."""

MIXERS, LANGUAGE = "mixers-bert", "urpe-wikitext"
SPARSE, GLUE = "sparse-lm", "sparse-glue"
TRANSLATION = "sparse-translation"
ZINC = "repositories MIT; ZINC is free to use, larger parts not to be redistributed"
WIKIPEDIA = "CC BY-SA 3.0 and GFDL (Wikipedia contributors); vocabulary Apache-2.0"
WORDS = "CC BY-SA 3.0 and GFDL (Wikipedia contributors, Merity et al. 2016)"
PARLIAMENT = (
    "European Parliament: may be reused with the source named; newstest2014: research"
)
SUMS = """
9013ff88016e21eb594396cd71f3a98a82b893528375f80dcaca0769a78ee255  enwiki-2015.shard0.txt
910186c8c6958b943be8969c7e5733347bf95bdd8484529a96a06b032414af2e  enwiki-2015.shard1.txt
ede1c62694cd7938f528c561ead40ebeffdeea6d376010d3cf55264de8b2c779  english-novels.tar.xz
wikitext-2/
9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f  wiki.train.tokens
f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8  wiki.valid.tokens
d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0  wiki.test.tokens
mnli/
c3d5b51544096d6790e9c0e118a4c50848b411bc9c1ba144d37479379c9871df  train_subset.tsv
88e83a4bc106bea3d139f1b5dfe3a243158295b59eccfc22c7f0d12d872a21d6  dev_matched.tsv
snli-subset/
f015eb8cf45b19366f6e24a93bcf0d1eaa0fb4d0f9be3d52cb25213b34c73e99  snli_subset.tsv
glue/CoLA/
f320a10f92d3bce6b29152fde322a362eac39238e50d8de0c8815457fdf4fc12  in_domain_train.tsv
77176f6a03faa5a1c4f23c69971fc1bff565931112fb65af47b2d6e24b7f42f7  in_domain_dev.tsv
201b9c57b2a20f1282242eec0ed8995729e3be19c29a46c047b3727338836c05  out_of_domain_dev.tsv
glue/SST-2/
48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1  train.tsv
54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0  dev.tsv
glue/MRPC/
61a88818ec384d8465297dda1883b469f1b22d442ab90183d13e06233b180591  msr_paraphrase_train.txt
0360d0d3427a0ae14882e2b3a799df0fab6cb5203d5e8ee481949283da62acb6  msr_paraphrase_test.txt
glue/RTE/
81d25e323e1ab5b2ad7cd445f1a69db89f2b1c104f3e26915a9421aa4a5f4735  train.tsv
80230dfa1347282e7b532b06a1004a76a710087541189bf874223ddf0e3819fb  dev.tsv
glue/STS-B/
0f71910b59aa1ad973c5897f0791f3b0965a92b8f82b1a95f3eea9f4162fda82  sts-train.csv
5d7e944d8b02734b07bfdb5df67db3420c64bed153fcaa1ba47ad03480cf4234  sts-dev.csv
squad/
e4a11645879f51795cfb9e12534f3ca4469326c0559aad8fd183e4184054fb70  train-v1.1.json
737c4efd12f373b115b7c7ba92312f32de07325441377c4c11b93810f45a4f30  dev-v1.1.json
zinc/
8c1d1e03c4434a36cbac4c55660616f9ece0d6e51e1f715ba44f5b2339223f06  zinc12k.csv
a3b0ec77d45a6d5cc6884532145de6fc310f4a6da77d25babcd9449e03a027c7  zinc250k_train.txt
ad7d9c2bfebd93ffda6c32ed0e89d1714ae1f592f6340c0e6ae057521bbae30d  zinc250k_valid.txt
31f6ce92914814db33bf0dbfc45f3836193e27cb80a59c54d88bc05a1f5fab83  zinc250k_test.txt
qm9-gap/
ebebe8c90d4d32f2ed9d5c4221e3fe5c1004627f3ccdb713cce39fc19eac7c81  qm9_gap.csv
europarl-en-de/
2f5fe049a1bc473983f19b074c896123752756b97e80222456bb8c00a9339288  train.tsv
7cc82664478984eb905a791c4f2483191dca7853ec504638cf04781024b678fa  valid.tsv
6f4f06c8de930c324f18c4aa16f85d339c4a2cec8c90acf5dfb30e99e79d4f84  test.tsv
wmt-en-de/
7294bccf2879a97b3706b95c9595f1459617a8ee7130d5d8581c910e69736971  newstest2014.en
ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e  newstest2014.de
multi30k/
460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6  train.en
2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72  train.de
1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227  val.en
660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660  val.de
399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182  test_2016_flickr.en
4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16  test_2016_flickr.de
2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da  train.cs
d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33  val.cs
45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8  test_2016_flickr.cs
"""
"""The sha256 of all source files, as `sha256sum` prints them within their folder."""


def _files(*beginnings: str) -> dict[str, str]:
    """The files of `SUMS` whose paths begin so, and their sha256."""
    found: dict[str, str] = {}
    folder = ""
    for line in SUMS.splitlines():
        digest, _, name = line.partition("  ")
        if name:
            found[folder + name] = digest
        else:
            folder = line
    return {n: found[n] for begin in beginnings for n in found if n.startswith(begin)}


WORDPIECES = {VOCABULARY: BERT_UNCASED}
SHARDS = _files("enwiki-2015")
WIKITEXT = _files("wikitext-2/")
"""WikiText-2, whose training text is the vocabulary of all packs of words."""

EUROPARL = _files("europarl-en-de/", "wmt-en-de/")


def _multi30k(language: str) -> dict[str, str]:
    """English and one other language, split by split."""
    parts = (f"multi30k/{part}." for part in ("train", "val", "test_2016_flickr"))
    return _files(*(part + one for part in parts for one in ("en", language)))


@dataclass(frozen=True)
class Recipe:
    """A pack that can be made.

    Attributes:
        name: Of the pack; its file is NAME.pack.xz.
        kind: Which reader makes it: enwiki, words, wikitext, novels, nli, glue, squad,
            molecules or translation.
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

    def name_of(self, tokens: int | None) -> str:
        """What the pack is called when it holds so many tokens; None for its own number.

        Raises:
            InputError: If it has no tokens to choose.
        """
        if tokens is None:
            return self.name
        if self.kind not in CUT or not 1 <= tokens <= MOST_TOKENS:
            msg = (
                f"{tokens} tokens of {self.name}: only packs of Wikipedia, novels or "
                f"translations are cut, to 1 .. {MOST_TOKENS} tokens. Leave out --tokens."
            )
            raise InputError(msg)
        return f"{self.name}-{tokens}"

    def check_files(self, source: Path) -> None:
        """Refuse a folder that does not hold all that the pack is made from.

        Raises:
            FileNotFoundError: If files are missing; all of them are named.
        """
        missing = [name for name in self.files if not (source / name).is_file()]
        if missing:
            lacks = f"lacks {', '.join(missing)}" if source.is_dir() else "is not a folder"
            msg = (
                f"{source} {lacks}. The pack {self.name!r} is made from "
                f"{', '.join(self.files)}: unpack them there, or give their folder "
                "(--from)."
            )
            raise FileNotFoundError(msg)


RECIPES = {
    one.name: one
    for one in (
        Recipe(
            "enwiki-wp",
            "enwiki",
            "English Wikipedia of May 2015, 14,860 articles, 57M WordPieces",
            WORDPIECES | SHARDS,
            WIKIPEDIA,
            56,
            6,
            (MIXERS, SPARSE, GLUE),
        ),
        Recipe(
            "enwiki-wp-48m",
            "enwiki",
            "the same, its first 48M WordPieces",
            WORDPIECES | SHARDS,
            WIKIPEDIA,
            47,
            5,
            (MIXERS, SPARSE, GLUE),
            tokens=48_000_000,
        ),
        Recipe(
            "enwiki-wp-36m",
            "enwiki",
            "the same, its first 36M WordPieces",
            WORDPIECES | SHARDS,
            WIKIPEDIA,
            36,
            4,
            (SPARSE, GLUE),
            tokens=36_000_000,
        ),
        Recipe(
            "enwiki-words",
            "words",
            "English Wikipedia of May 2015 in the words of WikiText-2, 52M; valid and test "
            "texts are those of WikiText-2",
            WIKITEXT | SHARDS,
            WORDS,
            51,
            8,
            (LANGUAGE,),
        ),
        Recipe(
            "enwiki-words-12m",
            "words",
            "the same, its first 12M words",
            WIKITEXT | SHARDS,
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
            WORDPIECES | _files("mnli/train", "snli", "mnli/dev"),
            "MNLI: OANC, CC BY and CC BY-SA by source; SNLI: CC BY-SA 4.0",
            3,
            1,
            (MIXERS, GLUE),
        ),
        Recipe(
            "glue",
            "glue",
            "GLUE: CoLA, SST-2, MRPC, RTE and STS-B; test examples are development sets",
            WORDPIECES | _files("glue/"),
            "CoLA: research, fair use; SST-2, MRPC, RTE: not stated; STS-B: CC BY-SA 4.0",
            1,
            1,
            (GLUE,),
        ),
        Recipe(
            "squad",
            "squad",
            "SQuAD 1.1: 87,599 training and 10,570 development questions",
            WORDPIECES | _files("squad/"),
            "CC BY-SA 4.0",
            6,
            1,
            (MIXERS,),
        ),
        Recipe(
            "zinc12k",
            "molecules",
            "ZINC, the 12,000 molecules of Benchmarking GNNs; targets recomputed",
            _files("zinc/zinc12k"),
            ZINC,
            1,
            1,
            ("urpe-zinc",),
        ),
        Recipe(
            "zinc250k",
            "molecules",
            "ZINC, all 249,456 molecules of JT-VAE; targets recomputed",
            _files("zinc/zinc250k"),
            ZINC,
            5,
            15,
            ("urpe-zinc",),
        ),
        Recipe(
            "qm9-gap",
            "molecules",
            "QM9, 130,831 molecules with the gap of their orbitals in eV",
            _files("qm9-gap/"),
            "CC0 (QM9); qm9pack MIT",
            1,
            1,
            ("urpe-qm9",),
        ),
        Recipe(
            "novels-bytes",
            "novels",
            "English novels of 1839 to 1937 as bytes: 44M to train, 4 + 4 held out",
            _files("english-novels"),
            "not stated by the collection; works of the 19th and early 20th century",
            13,
            2,
            ("bench long-context",),
            44_000_000,
        ),
        Recipe(
            "europarl-en-de",
            "translation",
            "Parliament, English to German paragraphs, byte pairs of both; newstest2014",
            EUROPARL,
            PARLIAMENT,
            38,
            8,
            (TRANSLATION,),
        ),
        Recipe(
            "europarl-en-de-18m",
            "translation",
            "the same, 18M training tokens of it",
            EUROPARL,
            PARLIAMENT,
            20,
            5,
            (TRANSLATION,),
            tokens=18_000_000,
        ),
        *(
            Recipe(
                f"multi30k-en-{language}",
                "translation",
                f"Multi30k: captions, English to {name}",
                _multi30k(language),
                "none stated in its repository (commonly CC BY-NC-SA 4.0)",
                1,
                1,
                (TRANSLATION,),
            )
            for language, name in (("de", "German"), ("cs", "Czech"))
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
