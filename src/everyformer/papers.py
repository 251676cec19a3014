"""The papers as data, and a mark that says which result a function implements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Paper:
    """A publication whose results are implemented here.

    Attributes:
        key: Short name used in code and messages.
        authors: Authors as printed.
        title: Title as printed.
        venue: Where and when it appeared.
        results: Every place of the paper that code may cite, in order: numbered results,
            sections, figures, tables, and headings of posters and slides.
    """

    key: str
    authors: str
    title: str
    venue: str
    results: tuple[str, ...]

    def __str__(self) -> str:
        """Authors, title and venue in one line."""
        return f"{self.authors}, {self.title!r}, {self.venue}"


YUN2020 = Paper(
    key="Yun et al. 2020",
    authors="C. Yun, S. Bhojanapalli, A. S. Rawat, S. J. Reddi, S. Kumar",
    title="Are Transformers universal approximators of sequence-to-sequence functions?",
    venue="ICLR 2020",
    results=(
        "Abstract",
        "Section 1",
        "Section 1.1",
        "Section 1.2",
        "Section 2",
        "Equation 1",
        "Footnote 1",
        "Equation 2",
        "Equation 3",
        "Claim 1",
        "Section 3",
        "Theorem 2",
        "Section 3.1",
        "Equation 4",
        "Theorem 3",
        "Section 4",
        "Proposition 4",
        "Section 5",
        "Section 5.1",
        "Lemma 5",
        "Section 5.2",
        "Definition 5.1",
        "Lemma 6",
        "Section 5.3",
        "Lemma 7",
        "Section 5.4",
        "Section 6",
        "Section 6.1",
        "Equation 5",
        "Footnote 2",
        "Figure 1",
        "Section 6.2",
        "Equation 6",
        "Section 6.3",
        "Footnote 3",
        "Appendix A",
        "Appendix B",
        "Appendix B.1",
        "Lemma 8",
        "Appendix B.2",
        "Lemma 9",
        "Appendix B.3",
        "Appendix B.4",
        "Appendix B.5",
        "Appendix B.5.1",
        "Lemma 10",
        "Appendix B.5.2",
        "Appendix B.5.3",
        "Appendix B.5.4",
        "Appendix B.6",
        "Appendix C",
        "Appendix C.1",
        "Appendix C.2",
        "Appendix C.3",
        "Appendix D",
        "Table 1",
        "Poster, Transformers",
        "Poster, Our Contributions",
        "Poster, Definitions",
        "Poster, Theorem 1",
        "Poster, Theorem 2",
        "Poster, Contextual Mappings",
        "Poster, Proof Sketch",
        "Poster, Alternative Architectures",
        "Poster, performance on BERT_BASE",
        "Poster, Hybrid Transformers",
    ),
)

YUN2020B = Paper(
    key="Yun et al. 2020b",
    authors="C. Yun, Y.-W. Chang, S. Bhojanapalli, A. S. Rawat, S. J. Reddi, S. Kumar",
    title="O(n) Connections are Expressive Enough: Universal Approximability of Sparse "
    "Transformers",
    venue="NeurIPS 2020",
    results=(
        "Abstract",
        "Sparse block",
        "Assumption 1",
        "Assumption 2",
        "Theorem 1",
        "Patterns",
        "Experiments",
    ),
)

LUO2022 = Paper(
    key="Luo et al. 2022",
    authors="S. Luo, S. Li, S. Zheng, T.-Y. Liu, L. Wang, D. He",
    title="Your Transformer May Not be as Powerful as You Expect",
    venue="NeurIPS 2022",
    results=(
        "Slides, Transformer Model Recap",
        "Slides, How Powerful are APE-based Transformers?",
        "Slides, Problems",
        "Slides, From Absolute-PE to Relative-PE",
        "Slides, Examples of RPE",
        "Slides, Question",
        "Theorem 2",
        "Slides, Motivating example",
        "Theorem 3",
        "Equation 8",
        "Proposition 4",
        "Slides, Practical instantiation",
        "Slides, Overview",
        "Slides, Synthetic Tasks",
        "Figure 1",
        "Figure 2",
        "Table 1",
        "Table 2",
        "Table 3",
        "Table 4",
    ),
)


ZAHEER2020 = Paper(
    key="Zaheer et al. 2020",
    authors="M. Zaheer, G. Guruganesh, A. Dubey, J. Ainslie, C. Alberti, S. Ontanon, "
    "P. Pham, A. Ravula, Q. Wang, L. Yang, A. Ahmed",
    title="Big Bird: Transformers for Longer Sequences",
    venue="NeurIPS 2020",
    results=("Theorem 1", "Lemma 2", "Lemma 3", "Lemma 4", "Appendix A"),
)


@dataclass(frozen=True)
class Citation:
    """One result of one paper."""

    paper: Paper
    result: str

    def __str__(self) -> str:
        """Paper and result, as printed beside a number."""
        return f"{self.paper.key}, {self.result}"


def implements(paper: Paper, *results: str) -> Callable[[F], F]:
    """Mark a function as the code of one or more results of a paper.

    The mark only sets the attribute `__implements__`; it changes nothing else.

    Raises:
        ValueError: If the paper has no such result.
    """
    unknown = [result for result in results if result not in paper.results]
    if unknown:
        msg = (
            f"{paper.key} has no {', '.join(unknown)}. It has: {', '.join(paper.results)}."
        )
        raise ValueError(msg)

    def mark(function: F) -> F:
        citations = tuple(Citation(paper, result) for result in results)
        function.__implements__ = citations  # type: ignore[attr-defined]
        return function

    return mark
