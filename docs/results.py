"""Builds docs/results.md and its figures from the run folders of jobs/paper/open: no figure in it is written by hand.

What a table says, and which of the paper's orderings it shows, is computed here; docs/results/notes.md, where it is
there, holds the words about it. Rows that were not run are listed as such.

    python docs/results.py [RUNS [DOCS]]      from runs/paper/open to this folder, unless you say otherwise
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pel_ray.artifacts import MANIFEST, Manifest, read_manifest
from pel_ray.evaluation_file import EvaluationFile, Figure, Row, read_evaluation
from pel_ray.evaluation_plots import Drawn, plot_nil
from pel_ray.metrics import Bootstrap
from pel_ray.plots import plot_compared
from pel_ray.rank_candidates import Candidates
from pel_ray.storage import locate
from pel_ray.tables import TableFolder

SEEDS = (1, 2)
MICRO, MACRO = "micro", "macro over worlds"
NOT_RUN = "not run"
COLOURS = ("#1f77b4", "#2ca02c", "#9467bd", "#d62728", "#7f7f7f")

RETRIEVAL = {
    "ce-random": (55.7, 94.0),
    "ce-mixed": (72.1, 95.6),
    "pb-random": (63.3, 95.9),
    "pb-mixed": (72.6, 95.0),
    "ce-random-fgsm": None,
    "ce-mixed-fgsm": (72.3, 95.5),
    "pb-random-fgsm": None,
    "pb-mixed-fgsm": (72.4, 93.7),
}
"""recall@1 and recall@64 of the paper on MedMentions: 64 negatives, with FGSM 32."""
ZERO_SHOT = {"ce-random": (44.1, 84.8), "ce-mixed": (52.5, 87.2), "pb-random": (48.9, 85.2), "pb-mixed": (53.1, 86.0)}
"""The same on ZESHEL."""
NIL = {
    "pb-0": (83.7, 81.2, 71.0, 72.6, 90.4),
    "pb-001": (84.4, 81.6, 71.5, 72.5, 90.2),
    "pb-005": (85.8, 83.3, 73.5, 72.4, 89.9),
    "pb-01": (87.6, 85.2, 79.2, 69.4, 85.7),
    "ce": (32.3, 31.8, 74.0, 64.4, 76.1),
}
"""auPR, precision, recall of NIL, recall@1 and recall@64 over all classes, of the paper."""
RANKER = {"pb-mixed": 74.0, "pb-mixed-fgsm": 74.6}
"""Accuracy of the paper on MedMentions."""
REFRESH = ("full", "pool", "frozen")
NAMES = {
    "ce": "CE",
    "pb": "Pb",
    "fgsm": "+ FGSM",
    "pb-0": "Pb, margin 0",
    "pb-001": "Pb, margin 0.01",
    "pb-005": "Pb, margin 0.05",
    "pb-01": "Pb, margin 0.1",
}


def name_of(row: str) -> str:
    return NAMES.get(row) or " ".join(NAMES.get(part, part) for part in row.split("-"))


@dataclass(frozen=True)
class Runs:
    """The folders of the tables."""

    folder: Path

    def evaluation(self, *path: str) -> EvaluationFile | None:
        folder = self.folder.joinpath(*path)
        if not (folder / MANIFEST).is_file():
            return None
        where = locate(folder)
        return read_evaluation(where, read_manifest(where, "evaluation"))

    def manifest(self, *path: str) -> Manifest | None:
        folder = self.folder.joinpath(*path)
        return read_manifest(locate(folder)) if (folder / MANIFEST).is_file() else None

    def figures(self, table: str, row: str, name: str = MICRO) -> list[Mapping[str, Figure]]:
        """Of the seeds that were run."""
        found = (self.evaluation(table, row, f"seed-{seed}", "test") for seed in SEEDS)
        return [row_of(evaluation, name).figures for evaluation in found if evaluation]


def row_of(evaluation: EvaluationFile, name: str = MICRO, system: str | None = None) -> Row:
    rows = evaluation.systems[system or next(iter(evaluation.systems))]
    return next(row for row in rows if row.name == name)


def shown(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return "-"
    interval = f" [{figure.low:.3f}, {figure.high:.3f}]" if figure.low is not None else ""
    return f"{figure.value:.3f}{interval}"


def mean(values: Sequence[Mapping[str, Figure]], name: str) -> float:
    return sum(figures[name].value or 0 for figures in values) / len(values)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_paper(figures: Sequence[float] | None, number: int) -> str:
    return f"{figures[number] / 100:.3f}" if figures else "-"


def seed_cells(found: Sequence[Mapping[str, Figure]]) -> list[str]:
    """recall@1 of each seed, then the means of recall@1 and recall@64."""
    seeds = [shown(figures["recall@1"]) for figures in found]
    means = [f"{mean(found, at):.3f}" if found else "-" for at in ("recall@1", "recall@64")]
    return [*seeds, *[NOT_RUN] * (len(SEEDS) - len(found)), *means]


def retrieval_table(runs: Runs, folder: str, paper: Mapping[str, Sequence[float] | None], name: str) -> str:
    head = ["", *(f"recall@1, seed {seed}" for seed in SEEDS), "recall@1", "recall@64", "paper @1", "paper @64"]
    rows = [
        [name_of(row), *seed_cells(runs.figures(folder, row, name)), of_paper(figures, 0), of_paper(figures, 1)]
        for row, figures in paper.items()
    ]
    untrained = runs.evaluation(folder, "untrained", "test")
    if untrained:
        for system in untrained.systems:
            figures = row_of(untrained, name, system).figures
            at_64 = f"{figures['recall@64'].value:.3f}"
            named = "untrained" if system == next(iter(untrained.systems)) else system
            rows.append([named, shown(figures["recall@1"]), "", "", at_64, "", ""])
    if found := runs.figures(folder, "mnrl", name):
        rows.append(["MultipleNegativesRankingLoss", *seed_cells(found), "", ""])
    return table(head, rows)


def nil_table(runs: Runs) -> str:
    rows = []
    for row, paper in NIL.items():
        evaluation = runs.evaluation("nil", row, "test")
        cells = [NOT_RUN, *[""] * 4]
        if evaluation and evaluation.nil and (chosen := evaluation.nil.threshold):
            at = (chosen.precision, chosen.recall, chosen.recall_at_1, chosen.recall_at_64)
            cells = [shown(evaluation.nil.auPR), *(f"{value:.3f}" for value in at)]
        rows.append([name_of(row), *cells, of_paper(paper, 0), of_paper(paper, 3)])
    return table(["", "auPR", "precision", "recall", "recall@1", "recall@64", "paper auPR", "paper @1"], rows)


def ranker_table(runs: Runs) -> str:
    rows = []
    for row, paper in RANKER.items():
        evaluation, tested = runs.evaluation("ranker", row, "test"), runs.manifest("ranker", row, "test")
        cells = [NOT_RUN, "", ""]
        if evaluation and tested:
            ranker, retriever = (row_of(evaluation, system=system).figures for system in list(evaluation.systems)[:2])
            ceiling = retriever[f"recall@{tested.request.settings['num_candidates']}"]
            cells = [shown(retriever["recall@1"]), shown(ranker["recall@1"]), shown(ceiling)]
        rows.append([name_of(row), *cells, of_paper((paper,), 0)])
    return table(["candidates by", "retriever alone", "with the ranker", "ceiling", "paper"], rows)


def refresh_table(runs: Runs) -> str:
    rows = []
    for row in REFRESH:
        evaluation, run = runs.evaluation("refresh", row, "test"), runs.manifest("refresh", row)
        if evaluation is None or run is None:
            rows.append([row, NOT_RUN, "", ""])
            continue
        seconds = run.counts["encoding seconds, since the last start"]
        rows.append([row, shown(row_of(evaluation).figures["recall@1"]), f"{seconds:.0f}", f"{run.seconds:.0f}"])
    return table(["refresh", "recall@1", "seconds of encoding", "seconds in all"], rows)


@dataclass(frozen=True)
class Ordering:
    """What any faithful implementation must show, by the paper."""

    claim: str
    first: str
    second: str


ORDERINGS = (
    Ordering("Pb above CE with random negatives", "pb-random", "ce-random"),
    Ordering("mixed above random negatives, CE", "ce-mixed", "ce-random"),
    Ordering("mixed above random negatives, Pb", "pb-mixed", "pb-random"),
)
WITH_FGSM = tuple(
    Ordering(f"FGSM above none, {name_of(row)}", f"{row}-fgsm", row)
    for row in ("ce-random", "ce-mixed", "pb-random", "pb-mixed")
)


@dataclass(frozen=True)
class Paired:
    """recall@1 of two rows on the same mentions, as means over seeds, and the interval of their difference."""

    runs: Runs
    folder: str
    name: str

    def hits(self, row: str) -> np.ndarray | None:
        """For each mention, in how many of the seeds its gold came first (a share)."""
        folders = [self.runs.folder / self.folder / row / f"seed-{seed}" / "test" for seed in SEEDS]
        found = [Candidates.read(locate(folder), 1) for folder in folders if (folder / MANIFEST).is_file()]
        return np.mean([candidates.is_gold()[:, 0] for candidates in found], axis=0) if found else None

    def gain(self, first: str, second: str) -> np.ndarray | None:
        """For each mention."""
        one, other = self.hits(first), self.hits(second)
        return None if one is None or other is None else one - other

    def cells(self, gain_Q: np.ndarray | None) -> list[str]:
        """The difference, its interval, and what it says of a claim that it is above zero."""
        if gain_Q is None:
            return [NOT_RUN, ""]
        documents, masks = self._mentions()

        def figure(weights_Q: np.ndarray) -> float:
            sums = [(weights_Q[mask] @ gain_Q[mask], weights_Q[mask].sum()) for mask in masks]
            return float(np.mean([above / below for above, below in sums if below]))

        low, high = Bootstrap(documents).interval(figure)
        verdict = "holds" if low > 0 else "reversed" if high < 0 else "not shown: zero is in the interval"
        return [f"{figure(np.ones(len(gain_Q))):+.3f} [{low:+.3f}, {high:+.3f}]", verdict]

    def _mentions(self) -> tuple[list[str], list[np.ndarray]]:
        """The documents of the test mentions, and a mask of each group whose figures are averaged."""
        data = self.runs.folder / ("wordnet" if self.folder == "zero-shot" else "medmentions")
        table = TableFolder.open(locate(data / "mentions"), "mentions")
        rows = pa.concat_tables(part.select(["split", "document_id", "world"]) for part in table.tables())
        rows = rows.filter(pc.equal(rows["split"], "test"))
        worlds = np.array(rows["world"].to_pylist(), object)
        groups = [worlds == world for world in sorted(set(worlds))] if self.name == MACRO else [worlds == worlds]
        return rows["document_id"].to_pylist(), groups


def orderings(runs: Runs, folder: str, claims: Sequence[Ordering], name: str) -> str:
    """The paper's orderings of recall@1, each with the difference on the same mentions."""
    paired = Paired(runs, folder, name)
    rows = [[claim.claim, *paired.cells(paired.gain(claim.first, claim.second))] for claim in claims]
    gains = [paired.gain(f"{loss}-mixed", f"{loss}-random") for loss in ("ce", "pb")]
    more = gains[0] - gains[1] if gains[0] is not None and gains[1] is not None else None
    rows.append(["mixed gains more for CE than for Pb", *paired.cells(more)])
    return table(["the paper's ordering", "difference of recall@1 here", ""], rows)


def figures(runs: Runs, out: Path) -> list[str]:
    """Draws what was run; the names of the files."""
    out.mkdir(exist_ok=True)
    drawn = []
    rows = [row for row in list(RETRIEVAL)[:4] if runs.manifest("retrieval", row, "seed-1")]
    if rows:
        found = {name_of(row): locate(runs.folder / "retrieval" / row / "seed-1") for row in rows}
        plot_compared(found, out / "gradients.png")
        drawn.append("gradients")
    curves = []
    for row, colour in zip(NIL, COLOURS, strict=True):
        evaluation = runs.evaluation("nil", row, "test")
        if evaluation and evaluation.nil:
            curves.append((Drawn(name_of(row), colour), evaluation.nil))
    if curves:
        plot_nil(curves, out / "nil.png")
        drawn.append("nil")
    return drawn


def page(runs: Runs, drawn: Sequence[str], notes: str) -> str:
    def picture(name: str, words: str) -> str:
        return f"![{words}](results/{name}.png)" if name in drawn else f"{words}: {NOT_RUN}."

    return f"""# Results

Made by `python docs/results.py` from what the pipelines in `jobs/paper/open/` left; do not edit it. The paper's data
need a licence or a network, and its sizes a GPU: `jobs/paper/` has specs for them, which we could not run. What stands
here was run on open data with small models on two CPU cores, as the specs say; the paper's figures beside it are for
MedMentions and ZESHEL, so compare the order of rows and not their height. In brackets: 95% intervals, from resampling
documents; those of differences compare the same mentions.

## Retrieval: medmentions_open

`pel-ray run jobs/paper/open/retrieval.yaml`; the last row: `pel-ray run jobs/paper/open/mnrl.yaml`

{retrieval_table(runs, "retrieval", RETRIEVAL, MICRO)}

{orderings(runs, "retrieval", [*ORDERINGS, *WITH_FGSM], MICRO)}

{picture("gradients", "Gradient norms of CE and Pb, with random and mixed negatives")}

## Zero-shot: wordnet_el

`pel-ray run jobs/paper/open/zero-shot.yaml`; mean over the lexicographer files, whose senses training never saw.

{retrieval_table(runs, "zero-shot", ZERO_SHOT, MACRO)}

{orderings(runs, "zero-shot", ORDERINGS, MACRO)}

## NIL: medmentions_open without anatomy

`pel-ray run jobs/paper/open/nil.yaml`

{nil_table(runs)}

{picture("nil", "Precision against recall of NIL")}

## Ranker: medmentions_open

`pel-ray run jobs/paper/open/ranker.yaml`

{ranker_table(runs)}

## Refreshing hard negatives

`pel-ray run jobs/paper/open/refresh.yaml`

{refresh_table(runs)}

{notes}"""


def main(runs_folder: str = "runs/paper/open", docs: str = str(Path(__file__).parent)) -> None:
    runs, out = Runs(Path(runs_folder)), Path(docs) / "results"
    if not runs.folder.is_dir():
        sys.exit(f"{runs.folder} is not there: run the pipelines in jobs/paper/open first")
    drawn = figures(runs, out)
    notes = out / "notes.md"
    text = page(runs, drawn, notes.read_text() if notes.is_file() else "")
    written = Path(docs) / "results.md"
    written.write_text(text)
    print(f"{written}: {text.count(NOT_RUN)} rows or figures not run")


if __name__ == "__main__":
    main(*sys.argv[1:])
