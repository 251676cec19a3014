"""What the options of the commands name and assume; light to import.

The library says the same elsewhere, and a test compares: help texts and usage errors need
not load what a command runs.
"""

EXECUTORS = ("auto", "reference", "literal", "prefix", "folded", "exact")

TARGETS = (
    "centring",
    "soft_attention",
    "distance_to_maximum",
    "smooth_rank",
    "smooth_bump",
    "sort",
    "reverse",
    "first_token",
    "prefix_mean",
    "shift",
)
"""The gallery."""

PATTERNS = (
    "dense",
    "causal",
    "strided",
    "fixed",
    "star",
    "star-first",
    "bare-star",
    "window",
    "window-global",
    "bigbird",
    "bigbird-blocks",
    "ring",
    "log-sparse",
    "dilated",
    "axial",
    "block-local",
    "random",
)
PATTERN_FILES = (".npy", ".txt", ".csv", ".edges")
"""Endings of masks and of edges."""

RHOS = ("softmax", "sparsemax", "hardmax", "sum-normalisation", "spherical-softmax")
RHOS_OF_A_NUMBER = {
    "top-k": "4",
    "entmax": "1.5",
    "sparsegen": "0.5",
    "sparsehourglass": "0.1",
}
"""With an example of the number."""

LAYERS = (
    "none",
    "t5",
    "t5-buckets",
    "alibi",
    "rotary",
    "shaw",
    "shaw-values",
    "deberta",
    "xl",
    "swin",
    "graphormer",
    "ape",
    "urpe",
)
"""Attention layers of the library; each but the last also with +urpe."""

EXPERIMENTS = (
    "urpe-synthetic",
    "sparse-copying",
    "contextual-gap",
    "random-projections",
    "mixers-bert",
    "urpe-figure1",
    "urpe-lengths",
    "urpe-images",
    "urpe-wikitext",
    "urpe-zinc",
    "urpe-qm9",
    "sparse-lm",
    "sparse-glue",
    "sparse-translation",
)

RULES = {
    "EF001": "permutation-equivariant",
    "EF002": "right-stochastic",
    "EF003": "equal-tokens-stay-equal",
    "EF004": "attentive",
    "EF005": "position-aware",
    "EF006": "causal",
    "EF007": "zero-to-zero",
    "EF008": "contexts-told-apart",
    "EF009": "tokens-apart",
    "EF010": "reversal-equivariant",
    "EF011": "affine",
    "EF012": "affine-on-equal-tokens",
}
ASSUMPTIONS = ("A1", "A1.1", "A1.2", "A1.3", "A2")

CHECK_SEQ_LEN = 16
CHECK_D_MODEL = 8
CHECK_HEADS = 2
TRIALS = 4
SEARCH_SECONDS = 10.0
MAX_WORK = 1800.0
MAX_MEMORY = 8.0

HALVES = ("both", "attention", "feed-forward")
"""What `ablate` can leave out of a stage."""

REPLACEMENTS = ("nothing", "mean")
"""What `ablate` can put in its place."""
