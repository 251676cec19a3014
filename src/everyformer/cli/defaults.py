"""What the options of the commands name and assume; light to import.

The library says the same elsewhere, and a test compares: help texts and usage errors need
not load what a command runs.
"""

EXECUTORS = ("auto", "reference", "literal", "prefix", "folded", "exact")

THEMES = (
    "building",
    "execution",
    "certificates",
    "constructions",
    "rates",
    "attention",
    "pairwise",
    "training",
    "bert",
    "xl",
    "graphs",
    "sparse",
    "causal",
    "long-context",
    "mixers",
    "mixer-costs",
    "hostile",
    "work",
    "tightness",
    "compile",
    "compile-scaling",
    "peers",
    "models",
)

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
