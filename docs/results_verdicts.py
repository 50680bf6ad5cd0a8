"""What the records say of the paper's orderings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from results_differences import Claim, Outcome, Resamples, Sampled, Seed, Verdict, judge
from results_paper import (
    ROWS_OF,
    ZERO_SHOTS,
    name_of,
    nil_claims,
    ranker_claims,
    refresh_claims,
    retrieval_claims,
    rows_of,
)
from results_records import DATA, MACRO, MICRO, Record, Records, unpack_numbers


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in nested.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def variation(norms: np.ndarray) -> float:
    """The standard deviation as a share of the mean."""
    return float(np.std(norms) / np.mean(norms))


class Verdicts:
    """Each on the mentions, documents and seeds that all of its rows have."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._resamples: dict[str, Resamples] = {}

    @cached_property
    def by_table(self) -> dict[str, list[Verdict]]:
        made = {name: self._retrieval(name) for name in ROWS_OF}
        made["nil"] = self._judged("nil", nil_claims())
        made["ranker"] = self._judged("ranker", ranker_claims(self._rows("ranker")))
        made["gradients"] = [self._steadier(kind, table) for table in ROWS_OF for kind in ("random", "mixed")]
        made["refresh"] = self._judged("refresh", refresh_claims())
        return made

    def gradient_norms(self, table: str) -> dict[str, dict[Seed, np.ndarray]]:
        """Of each row of a table and seed, after the warm-up."""
        found: dict[str, dict[Seed, np.ndarray]] = {}
        for row in self._rows(table):
            for seed, record in self._records.of_row(table, row).items():
                if len(norms := _after_warmup(record)) > 1:
                    found.setdefault(row, {})[seed] = norms
        return found

    def _rows(self, name: str) -> list[str]:
        return rows_of(name, self._records.rows(name))

    def _retrieval(self, name: str) -> list[Verdict]:
        """Of means over worlds in the zero-shot tables, with the same of all mentions alike beside it."""
        claims = retrieval_claims(name, set(self._rows(name)))
        micro = self._judged(name, claims)
        if name not in ZERO_SHOTS:
            return micro
        return [replace(one, micro=other) for one, other in zip(self._judged(name, claims, MACRO), micro, strict=True)]

    def _judged(self, name: str, claims: Sequence[Claim], average: str = MICRO) -> list[Verdict]:
        figures = {row: self._figures(name, row, average) for row in self._rows(name)}
        if name == "ranker":
            figures |= {f"the retriever of {row}": self._retriever_figures(row) for row in self._rows(name)}
        return [judge(claim, figures, self._caveat(name, claim)) for claim in claims]

    def _figures(self, name: str, row: str, average: str) -> dict[Seed, Sampled]:
        return {seed: self._figure(record, average) for seed, record in self._records.of_row(name, row).items()}

    def _retriever_figures(self, row: str) -> dict[Seed, Sampled]:
        runs = self._records.of_row("ranker", row)
        beside = {seed: self._records.retriever_of(record) for seed, record in runs.items()}
        return {seed: self._figure(record) for seed, record in beside.items() if record}

    def _figure(self, record: Record, average: str = MICRO) -> Sampled:
        """auPR in the NIL table, recall@1 in others: on the same resamples for all rows of a data set."""
        name, mentions = DATA[record.table], self._records.mentions(record.table)
        if name not in self._resamples:
            self._resamples[name] = Resamples(mentions.document_Q)
        if record.table == "nil" and record.nil:
            return self._resamples[name].auPR(unpack_numbers(record.nil["order"]), mentions.is_nil_Q)
        masks = mentions.macro if average == MACRO else mentions.micro
        return self._resamples[name].share(record.first_Q(mentions), masks)

    def _caveat(self, name: str, claim: Claim) -> str:
        """Rows that are what they were before training: their order says nothing of how they were trained."""
        rows = [row for _, row in claim.terms]
        found = [row for row in rows if any(run.is_untrained for run in self._records.of_row(name, row).values())]
        return f"{' and '.join(map(name_of, found))} untrained" if found else ""

    def _steadier(self, kind: str, table: str) -> Verdict:
        """No interval: the steps of a run follow from each other."""
        text = f"gradient norms of Pb vary less than those of CE, {kind} negatives{ROWS_OF[table]}"
        norms = self.gradient_norms(table)
        pb, ce = (norms.get(f"{loss}-{kind}", {}) for loss in ("pb", "ce"))
        gains = {seed: variation(pb[seed]) - variation(ce[seed]) for seed in pb if seed in ce}
        if not gains:
            return Verdict(text, "not run", "")
        low, high = min(gains.values()), max(gains.values())
        outcome: Outcome = "holds" if high < 0 else "reversed" if low > 0 else "not shown"
        words = "seeds disagree" if outcome == "not shown" else "in every seed" if len(gains) > 1 else "one run of each"
        by_seed = ", ".join(f"{seed}: {gain:+.3f}" for seed, gain in gains.items())
        return Verdict(text, outcome, words, f"{np.mean(list(gains.values())):+.3f}", by_seed, num_runs=len(gains))


def _after_warmup(record: Record) -> np.ndarray:
    if not record.training:
        return np.zeros(0)
    steps, norms = (np.array(record.training[name]) for name in ("step", "gradient_norm"))
    num_steps = record.num_steps or steps.max(initial=0)
    return norms[steps > flat(record.settings).get("optimiser.warmup", 0) * num_steps]
