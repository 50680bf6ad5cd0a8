"""The tables of the page of results, each made of records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from results_differences import Seed
from results_paper import (
    BASELINES_OF,
    NIL,
    RANKER,
    RETRIEVAL,
    ROWS_OF,
    ZERO_SHOT,
    ZERO_SHOTS,
    name_of,
    rows_of,
)
from results_records import MACRO, MICRO, Interval, Record, Records
from results_verdicts import Verdicts, flat, variation

SEEDS = (1, 2)
NOT_RUN = "not run"
UNSEEN = "unseen in training"
UNTRAINED = "untrained: training did not help"
SHOWN = {
    "max_mentions": "training mentions at most",
    "optimiser.epochs": "epochs",
    "optimiser.batch_size": "batch",
    "optimiser.lr": "learning rate",
    "model.layers": "layers",
    "model.pooling": "pooling",
    "model.text.template": "template",
    "model.text.mention_length": "word pieces of a mention",
    "model.text.entity_length": "of an entity",
    "negatives.num_negatives": "negatives",
    "negatives.in_batch": "in-batch negatives",
    "candidates.num_candidates": "candidates",
    "optimiser.freeze_embeddings": "frozen word embeddings",
    "optimiser.dropout": "dropout",
    "precision": "precision",
}
"""Settings that are told under a table."""
COMPARED = {"objective.loss.kind", "objective.loss.margin", "objective.adversarial.fgsm", "negatives.kind"}
COMPARED |= {"negatives.refresh", "model.similarity", "seed"}
"""Settings that the rows of a table are there to compare; any other that differs is told."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(figure: Interval | None) -> str:
    if figure is None or figure[0] is None:
        return "-"
    value, low, high = figure
    return f"{value:.3f}" if low is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def of_paper(figures: Sequence[float], number: int) -> str:
    return f"{figures[number] / 100:.3f}" if figures else "-"


def best_epochs(records: Sequence[Record]) -> str:
    words = ", ".join("-" if record.best_epoch is None else str(record.best_epoch) for record in records)
    return f"{words} ({UNTRAINED})" if any(record.is_untrained for record in records) else words or "-"


def mean_of(records: Sequence[Record], group: str, name: str) -> str:
    """Over seeds; of a single run without one, its interval too."""
    found = [record.figure(group, name) for record in records]
    values = [figure[0] for figure in found if figure and figure[0] is not None]
    if len(records) == 1 and records[0].seed is None:
        return shown(found[0])
    return f"{np.mean(values):.3f}" if values else "-"


class Tables:
    """What the records say."""

    def __init__(self, records: Records) -> None:
        self.records, self.verdicts = records, Verdicts(records)

    def rows(self, name: str) -> list[str]:
        return rows_of(name, self.records.rows(name))

    def lines(self, name: str) -> Iterator[tuple[str, Record | None]]:
        """A row and each of its runs; nothing where it was not run."""
        for row in self.rows(name):
            found: list[Record | None] = [*self.records.of_row(name, row).values()]
            yield from ((row, record) for record in found or [None])

    def retrieval(self, name: str) -> str:
        paper, groups = (ZERO_SHOT, (MACRO, MICRO)) if name in ZERO_SHOTS else (RETRIEVAL, (MICRO, UNSEEN))
        found = {record.seed for record in self.records.runs if record.table == name}
        seeds = sorted({*SEEDS, *(seed for seed in found if seed is not None)})
        beside = {MICRO: "micro", UNSEEN: "unseen"}[groups[1]]
        head = ["", *(f"recall@1, seed {seed}" for seed in seeds), "best epoch", "recall@1", "recall@64"]
        rows = []
        for of, row in [(name, row) for row in self.rows(name)] + [(BASELINES_OF.get(name, ""), "untrained")]:
            runs = self.records.of_row(of, row)
            if runs or of == name:
                rows.append([name_of(row), *self._cells(runs, seeds, groups), *_paper_cells(paper.get(row, ()))])
            rows += [self._baseline(system, found, seeds, groups) for system, found in self._baselines(of, row)]
        return table([*head, f"{beside} @1", f"{beside} @64", "paper @1", "paper @64"], rows)

    def _cells(self, runs: Mapping[Seed, Record], seeds: Sequence[int], groups: Sequence[str]) -> list[str]:
        """recall@1 of each seed in its own column, the best epochs, then means."""
        of_seeds = [""] * len(seeds)
        if None not in runs:
            of_seeds = [shown(runs[seed].figure(groups[0], "recall@1")) if seed in runs else NOT_RUN for seed in seeds]
        means = [mean_of(list(runs.values()), of, at) for of in groups for at in ("recall@1", "recall@64")]
        return [*of_seeds, best_epochs(list(runs.values())), *means]

    def _baselines(self, name: str, row: str) -> Iterator[tuple[str, Mapping[str, Mapping[str, Interval]]]]:
        """What an evaluation of the untrained encoder has beside it: dictionary, TF-IDF."""
        for record in self.records.of_row(name, row).values() if row == "untrained" else ():
            yield from list(record.systems.items())[1:]

    def _baseline(
        self, system: str, of: Mapping[str, Mapping[str, Interval]], seeds: Sequence[int], groups: Sequence[str]
    ) -> list[str]:
        figures = [shown(of.get(name, {}).get(at)) for name in groups for at in ("recall@1", "recall@64")]
        return [system, *[""] * len(seeds), "-", *figures, "-", "-"]

    def nil(self) -> str:
        names = ("auPR", "precision", "recall", "recall@1", "recall@64")
        rows = []
        for row, record in self.lines("nil"):
            ours, paper = self._nil_cells(record), NIL.get(row, ())
            cells = [cell for number, our in enumerate(ours) for cell in (our, of_paper(paper, number))]
            label = name_of(row, record.seed if record else None)
            rows.append([label, best_epochs([record] if record else []), *cells])
        return table(["", "best epoch", *(cell for name in names for cell in (name, "paper"))], rows)

    def _nil_cells(self, record: Record | None) -> list[str]:
        if record is None or record.nil is None:
            return [NOT_RUN, *[""] * 4]
        at = record.nil["threshold"] or {}
        names = ("precision", "recall", "recall@1", "recall@64")
        return [shown(record.nil["auPR"]), *(shown([at.get(name), None, None]) for name in names)]

    @property
    def nil_share(self) -> str:
        """What a guess would score."""
        if "nil" not in self.records.data:
            return NOT_RUN
        is_nil_Q = self.records.data["nil"].is_nil_Q
        return f"{is_nil_Q.mean():.3f} ({is_nil_Q.sum():,} of {len(is_nil_Q):,} test mentions are NIL)"

    def ranker(self) -> str:
        rows = [
            [name_of(row, record.seed if record else None), *self._ranker_cells(record), of_paper(paper, 0)]
            for row, record in self.lines("ranker")
            for paper in [(RANKER[row],) if row in RANKER else ()]
        ]
        head = ["", "best epoch", "k", "retriever alone", "this row", "normalised", "ceiling: recall@k", "paper"]
        return table(head, rows)

    def _ranker_cells(self, record: Record | None) -> list[str]:
        if record is None:
            return ["-", "", "", NOT_RUN, "", ""]
        own, beside, k = record.main[MICRO], self.records.retriever_of(record), record.num_candidates
        alone = record.systems["retriever"][MICRO] if k else beside.main[MICRO] if beside else {}
        before = [best_epochs([record]), str(k or "-"), shown(alone.get("recall@1")), shown(own["recall@1"])]
        # The ranker sees k candidates: what it finds is what was among them.
        return [*before, shown(own.get("normalised@1")) if k else "-", shown(alone.get(f"recall@{k}"))]

    def refresh(self) -> str:
        rows = []
        for row, record in self.lines("refresh"):
            if record is None:
                rows.append([row, "-", NOT_RUN, "", ""])
                continue
            seconds = ["resumed: not measured" if record.is_resumed else _whole(record.seconds[of]) for of in _COST]
            label = row if record.seed is None else f"{row}, seed {record.seed}"
            rows.append([label, best_epochs([record]), shown(record.figure(MICRO, "recall@1")), *seconds])
        return table(["refresh", "best epoch", "recall@1", "seconds of encoding", "seconds in all"], rows)

    def gradients(self) -> str:
        rows = []
        for name in ROWS_OF:
            for row, by_seed in self.verdicts.gradient_norms(name).items():
                norms = list(by_seed.values())
                mean, deviation = (f"{np.mean([of(values) for values in norms]):.3g}" for of in (np.mean, np.std))
                variations = [f"{variation(by_seed[seed]):.3f}" if seed in by_seed else NOT_RUN for seed in SEEDS]
                rows.append([f"{name_of(row)}{ROWS_OF[name]}", mean, deviation, *variations])
        seeds = (f"coefficient of variation, seed {seed}" for seed in SEEDS)
        return table(["", "mean norm", "standard deviation", *seeds], rows) if rows else f"{NOT_RUN}."

    def orderings(self, name: str) -> str:
        figure = "auPR" if name == "nil" else "coefficient of variation" if name == "gradients" else "recall@1"
        head = ["ordering", f"difference of {figure} here", "by seed", "paper", "verdict"]
        head += ["micro"] if name in ZERO_SHOTS else []
        return table(head, [verdict.cells for verdict in self.verdicts.by_table[name]])

    def settings(self, name: str) -> str:
        """What all rows of a table were told, and in what they differ beside what they compare."""
        found = [record for row, record in self.lines(name) if record and record.settings and row != "untrained"]
        if not found:
            return ""
        told = [flat(record.settings) for record in found]
        shared = [f"{SHOWN[key]} {told[0][key]}" for key in SHOWN if _is_same(told, key) and told[0][key] is not None]
        keys = sorted(set.intersection(*map(set, told)) - COMPARED)
        others = [_by_value(key, found, told) for key in keys if not _is_same(told, key)]
        seconds = [record.seconds["run"] or 0 for record in found if not record.is_resumed]
        cost = f" A run took {min(seconds) / 60:.1f} to {max(seconds) / 60:.1f} minutes." if seconds else ""
        differing = f" Rows differ in: {'; '.join(others)}." if others else ""
        return f"All trained rows: {', '.join(shared)}.{differing}{cost}"


_COST = ("encoding", "run")


def _paper_cells(figures: Sequence[float]) -> list[str]:
    return [of_paper(figures, 0), of_paper(figures, 1)]


def _whole(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f}"


def _is_same(told: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all(key in settings and settings[key] == told[0].get(key) for settings in told)


def _by_value(key: str, records: Sequence[Record], told: Sequence[Mapping[str, Any]]) -> str:
    rows: dict[str, list[str]] = {}
    for record, settings in zip(records, told, strict=True):
        names = rows.setdefault(str(settings[key]), [])
        names += [record.row] if record.row not in names else []
    return f"{key} " + ", ".join(f"{value} ({' '.join(names)})" for value, names in rows.items())
