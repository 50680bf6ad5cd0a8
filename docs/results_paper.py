"""What the paper reports, in percent, and the orderings that any faithful implementation should show."""

from __future__ import annotations

from results_differences import Claim

RETRIEVAL: dict[str, tuple[float, ...]] = {
    "ce-random": (55.7, 94.0),
    "ce-mixed": (72.1, 95.6),
    "pb-random": (63.3, 95.9),
    "pb-mixed": (72.6, 95.0),
    "ce-random-fgsm": (),
    "ce-mixed-fgsm": (72.3, 95.5),
    "pb-random-fgsm": (),
    "pb-mixed-fgsm": (72.4, 93.7),
}
"""recall@1 and recall@64 on MedMentions: 64 negatives, with FGSM 32."""
RETRIEVAL_32 = RETRIEVAL | {"ce-mixed": (72.1, 95.5), "pb-mixed": (71.6, 93.3)}
"""With 32 negatives too where the paper has it: what its rows with FGSM compare with."""
ZERO_SHOT: dict[str, tuple[float, ...]] = {
    "ce-random": (44.1, 84.8),
    "ce-mixed": (52.5, 87.2),
    "pb-random": (48.9, 85.2),
    "pb-mixed": (53.1, 86.0),
    "ce-random-fgsm": (44.1, 85.2),
    "ce-mixed-fgsm": (53.2, 87.2),
    "pb-random-fgsm": (49.7, 85.6),
    "pb-mixed-fgsm": (54.2, 86.6),
}
"""The same on ZESHEL, all with 32 negatives."""
NIL: dict[str, tuple[float, ...]] = {
    "pb-0": (83.7, 81.2, 71.0, 72.6, 90.4),
    "pb-001": (84.4, 81.6, 71.5, 72.5, 90.2),
    "pb-005": (85.8, 83.3, 73.5, 72.4, 89.9),
    "pb-01": (87.6, 85.2, 79.2, 69.4, 85.7),
    "ce": (32.3, 31.8, 74.0, 64.4, 76.1),
}
"""auPR, precision, recall of NIL, recall@1 and recall@64 over all classes."""
FIVE_EPOCHS = "-5-epochs"
RANKER = {"pb-mixed": 74.0, f"pb-mixed{FIVE_EPOCHS}": 74.0, "pb-mixed-fgsm": 74.6}
"""Accuracy on MedMentions, of 16 candidates and after five epochs."""
PLANNED = {
    "retrieval": tuple(RETRIEVAL),
    "longer": ("ce-random", "ce-mixed", "pb-random", "pb-mixed", "ce-mixed-fgsm", "pb-mixed-fgsm"),
    "zero-shot": tuple(ZERO_SHOT)[:4],
    "zero-shot-longer": tuple(ZERO_SHOT)[:4],
    "zero-shot-worlds": tuple(ZERO_SHOT),
    "nil": tuple(NIL),
    "ranker": (*RANKER, "pb-mixed-blend"),
    "refresh": ("full", "pool", "frozen"),
}
"""The rows of our pipelines; others are shown where they were run."""
ZERO_SHOTS = ("zero-shot-worlds", "zero-shot-longer", "zero-shot")
"""The tables of senses that training never saw; in the first one, of worlds that it never saw."""
BASELINES = {"retrieval": ("untrained", "mnrl"), "zero-shot": ("untrained",), "zero-shot-worlds": ("untrained",)}
BASELINES_OF = {"longer": "retrieval", "zero-shot-longer": "zero-shot"}
"""Tables that show the baselines of another one, whose test mentions are theirs."""
ROWS_OF = {
    "longer": "",
    "retrieval": ", short runs",
    "zero-shot-worlds": ", zero-shot, new worlds",
    "zero-shot-longer": ", zero-shot, new senses",
    "zero-shot": ", zero-shot, new senses, short runs",
}
"""What tells the rows of the tables of retrieval apart where all are told."""
NAMES = {
    "ce": "CE",
    "pb": "Pb",
    "fgsm": "+ FGSM",
    "blend": "+ the retriever's score",
    "prior": "from the retriever's score",
    "untrained": "untrained encoder",
    "mnrl": "MultipleNegativesRankingLoss",
    "distil": "retriever after distilling",
    "pb-mixed-5-epochs": "Pb mixed, 5 epochs",
    "pb-0": "Pb, margin 0",
    "pb-001": "Pb, margin 0.01",
    "pb-005": "Pb, margin 0.05",
    "pb-01": "Pb, margin 0.1",
}


def rows_of(table: str, found: list[str]) -> list[str]:
    """The rows of a table: those of its pipelines, whether they were run or not, then what else was run."""
    planned = [*PLANNED[table], *BASELINES.get(table, ())]
    return [*planned, *(row for row in found if row not in planned)]


def name_of(row: str, seed: int | None = None) -> str:
    name = NAMES.get(row) or " ".join(NAMES.get(part, part) for part in row.split("-"))
    return name if seed is None else f"{name}, seed {seed}"


def retrieval_claims(table: str, rows: set[str]) -> list[Claim]:
    """Of recall@1; those about FGSM where rows with it are planned or were run."""
    figures = ZERO_SHOT if table in ZERO_SHOTS else RETRIEVAL
    claims = [
        *(_above(f"Pb above CE with {kind} negatives", f"pb-{kind}", f"ce-{kind}", figures) for kind in _KINDS),
        *(_above(f"mixed above random negatives, {name_of(loss)}", f"{loss}-mixed", f"{loss}-random", figures)
          for loss in _LOSSES),
        _more_for_ce(figures),
    ]  # fmt: skip
    with_32 = ZERO_SHOT if table in ZERO_SHOTS else RETRIEVAL_32
    for row in (f"{loss}-{kind}" for loss in _LOSSES for kind in _KINDS):
        # Also in steps of another length, which the paper does not have: pb-mixed-fgsm-0.003.
        for other in sorted(other for other in {*PLANNED[table], *rows} if other.startswith(f"{row}-fgsm")):
            is_ours = not figures.get(other)
            step = other.removeprefix(f"{row}-fgsm").replace("-", " in steps of ")
            paper = None if is_ours else _gain(with_32, other, row)
            text, terms = f"FGSM{step} does not hurt, {name_of(row)}", ((1, other), (-1, row))
            claims.append(Claim(text, terms, "no harm", paper, is_ours))
    return claims


def nil_claims() -> list[Claim]:
    """Of auPR."""
    margins = ["pb-0", "pb-001", "pb-005", "pb-01"]
    pairs = [("pb-0", "ce"), *zip(margins[1:], margins, strict=False), ("pb-01", "pb-0")]
    return [_above(f"{name_of(first)}, above {name_of(second)}", first, second, NIL) for first, second in pairs]


def ranker_claims(rows: list[str]) -> list[Claim]:
    """Of recall@1; `the retriever of ROW` stands for what the row's retriever finds alone."""
    claims = []
    for row in rows:
        paper = (RANKER[row] - RETRIEVAL[row.removesuffix(FIVE_EPOCHS)][0]) / 100 if row in RANKER else None
        text, terms = f"{name_of(row)}: above the retriever alone", ((1, row), (-1, f"the retriever of {row}"))
        claims.append(Claim(text, terms, paper=paper, is_ours=row not in RANKER))
    gain = (RANKER["pb-mixed-fgsm"] - RANKER["pb-mixed"]) / 100
    return [*claims, Claim.above("FGSM does not hurt, ranker", "pb-mixed-fgsm", "pb-mixed", gain, "no harm")]


def refresh_claims() -> list[Claim]:
    """Ours: the paper encodes the whole KB each time."""
    return [
        Claim(f"{row} does not cost recall@1 against full", ((1, row), (-1, "full")), "no harm", is_ours=True)
        for row in PLANNED["refresh"][1:]
    ]


_LOSSES, _KINDS = ("ce", "pb"), ("random", "mixed")


def _gain(figures: dict[str, tuple[float, ...]], first: str, second: str) -> float | None:
    one, other = figures[first], figures[second]
    return (one[0] - other[0]) / 100 if one and other else None


def _above(text: str, first: str, second: str, figures: dict[str, tuple[float, ...]]) -> Claim:
    return Claim.above(text, first, second, _gain(figures, first, second))


def _more_for_ce(figures: dict[str, tuple[float, ...]]) -> Claim:
    terms = ((1, "ce-mixed"), (-1, "ce-random"), (-1, "pb-mixed"), (1, "pb-random"))
    paper = sum(sign * figures[row][0] for sign, row in terms) / 100
    gains = tuple(((1, f"{loss}-mixed"), (-1, f"{loss}-random")) for loss in _LOSSES)
    return Claim("mixed gains more for CE than for Pb", terms, paper=paper, gains=gains)
