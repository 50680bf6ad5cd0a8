"""Builds docs/results.md and its figures from records of the runs of jobs/paper/open: nothing in it is written by hand.

Run folders are large and cost hours, so what the page needs of them is collected into small files that are kept:

    python docs/results.py collect [RUNS]     from runs/paper/open to docs/results/records
    python docs/results.py                    from docs/results/records to docs/results.md

What a table says, and which of the paper's orderings it shows, is computed; docs/results/notes.md, where it is there,
holds the words about it. Rows that were not run are listed as such.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from results_collect import collect
from results_differences import NO_HARM, NUM_RESAMPLES, Outcome, Verdict
from results_paper import NIL, PLANNED, RETRIEVAL_32, ROWS_OF, name_of
from results_records import Record, Records
from results_tables import NOT_RUN, Tables

from pel_ray.errors import PelRayError
from pel_ray.evaluation_file import Curve, Figure, Nil, Threshold
from pel_ray.evaluation_plots import Drawn, plot_nil
from pel_ray.metrics_file import MetricsFile
from pel_ray.plots import plot_compared
from pel_ray.storage import locate

COLOURS = ("#1f77b4", "#2ca02c", "#9467bd", "#d62728", "#7f7f7f")
FIGURE = "zero-shot-worlds"
COMPARED = PLANNED[FIGURE][:4]
"""The table and rows of the figure of gradient norms, which the paper has of ZESHEL."""
GRADIENTS, CURVES = "Gradient norms of CE and Pb, with random and mixed negatives", "Precision against recall of NIL"
SHORTER = ("retrieval", "zero-shot-longer", "zero-shot")
TITLES = {
    "longer": "Retrieval",
    "retrieval": "Retrieval, short runs",
    "zero-shot-worlds": "Zero-shot, new worlds",
    "zero-shot-longer": "Zero-shot, new senses",
    "zero-shot": "Zero-shot, new senses, short runs",
    "nil": "NIL",
    "ranker": "Ranker",
    "gradients": "Gradients",
}
OUTCOMES: list[tuple[Outcome, bool, str]] = [
    ("holds", False, "Appear"),
    ("holds", True, "Appear, in one run of each row"),
    ("not shown", False, "Do not appear: the runs cannot tell"),
    ("not shown", True, "Do not appear, in one run of each row: they cannot tell"),
    ("reversed", False, "Are reversed"),
    ("reversed", True, "Are reversed, in one run of each row"),
    ("not run", False, "Not run"),
]
"""What became of an ordering, and whether seeds cannot have agreed on it."""
SAID: dict[Outcome, str] = {"holds": "appear", "not shown": "do not appear", "reversed": "are reversed"}


def in_short(tables: Tables) -> str:
    """The paper's orderings by what became of them; of shorter runs, and of what was not run, only how many."""
    papers = [
        (name, verdict)
        for name, verdicts in tables.verdicts.by_table.items()
        for verdict in verdicts
        if not verdict.is_ours
    ]
    lines = []
    for outcome, is_single, title in OUTCOMES:
        found = [
            (TITLES[name], verdict)
            for name, verdict in papers
            if verdict.outcome == outcome and (verdict.num_runs == 1) == is_single and not is_shorter(name, verdict)
        ]
        if found and outcome == "not run":
            counts = Counter(table for table, _ in found)
            lines.append(f"- **{title}** ({len(found)}): {', '.join(f'{table} {n}' for table, n in counts.items())}")
        elif found:
            lines += [f"- **{title}** ({len(found)})", *(f"  - {table}: {verdict.line}" for table, verdict in found)]
    shorter = Counter(verdict.outcome for name, verdict in papers if is_shorter(name, verdict))
    del shorter["not run"]
    if shorter:
        counts = ", ".join(f"{number} {SAID[outcome]}" for outcome, number in sorted(shorter.items()))
        lines.append(f"- **Of shorter runs and other splits**, each in its own table below: {counts}")
    return "\n".join(lines)


def is_shorter(name: str, verdict: Verdict) -> bool:
    """Whether a longer table has the same rows; norms of gradients name theirs at their end."""
    return name in SHORTER or any(verdict.claim.endswith(ROWS_OF[table]) for table in SHORTER)


def draw_gradients(records: Records, file: Path) -> bool:
    """Of the first run of each row, if there is one."""
    found = {row: next(iter(records.of_row(FIGURE, row).values()), None) for row in COMPARED}
    with tempfile.TemporaryDirectory() as scratch:
        runs = {}
        for row, record in found.items():
            if record and record.training and record.validation:
                runs[name_of(row, record.seed)] = locate(scratch) / row
                MetricsFile.of_run(locate(scratch) / row).append(_lines(record))
        if runs:
            plot_compared(runs, file)
    return bool(runs)


def _lines(record: Record) -> list[dict]:
    """As metrics.jsonl has them."""
    training, validation = record.training or {}, record.validation or {}
    watched = [name for name in validation if name != "epoch"]
    lines: list[dict] = [dict(zip(training, values, strict=True)) for values in zip(*training.values(), strict=True)]
    for number, epoch in enumerate(validation["epoch"]):
        lines.append({"epoch": epoch, "validation": {name: validation[name][number] for name in watched}})
    return lines


def draw_nil(records: Records, file: Path) -> bool:
    curves = []
    for row, colour in zip(NIL, COLOURS, strict=True):
        record = next(iter(records.of_row("nil", row).values()), None)
        if record and record.nil:
            value, low, high = record.nil["auPR"]
            threshold, curve = record.nil["threshold"], Curve(**record.nil["curve"])
            nil = Nil(
                mentions=records.mentions("nil").num_mentions,
                nil_mentions=record.nil["num_nil"],
                auPR=Figure(value=value, low=low, high=high),
                threshold=Threshold(**threshold) if threshold else None,
                curve=curve,
            )
            curves.append((Drawn(name_of(row, record.seed), colour), nil))
    if curves:
        plot_nil(curves, file)
    return bool(curves)


def picture(is_drawn: bool, name: str, words: str) -> str:
    return f"![{words}](results/{name}.png)" if is_drawn else f"{words}: {NOT_RUN}."


def with_32() -> str:
    """The paper's rows without FGSM that its rows with FGSM compare with."""
    rows = (("CE", "ce-mixed"), ("Pb", "pb-mixed"))
    said = (f"{name} {RETRIEVAL_32[row][0]:.1f} / {RETRIEVAL_32[row][1]:.1f}" for name, row in rows)
    return " and ".join(said)


def page(tables: Tables, gradients: str, curves: str, notes: str) -> str:
    return f"""# Results

Made by `python docs/results.py` from `docs/results/records/`, which `python docs/results.py collect` makes from what
the pipelines in `jobs/paper/open/` leave; do not edit it. The paper's data need a licence or a network, and its sizes
a GPU: `jobs/paper/` has specs for them, which we could not run. What stands here was run on open data
([what they are](data.md#the-data-of-the-results)) with small models on two CPU cores, as the specs say; the paper's
figures beside it are for MedMentions and ZESHEL, so compare the order of rows and not their height.

In brackets: 95% intervals, from {NUM_RESAMPLES:,} resamples of the test documents (of auPR in its table: 200); those of
differences compare the same mentions, over the seeds that both rows have. An ordering *holds* if the interval of its
mean difference is above zero and every seed agrees; that something *does not hurt* holds if the interval is above
-{NO_HARM}. Each interval is for its own comparison: of twenty true zeros, one will look like a difference. They say
what other test documents would change, not what other seeds would, of which there are few. In wordnet_el each mention
is a document of its own, though those of one sense are alike: its intervals are a little too narrow.

Not run on open data: FGSM in the zero-shot tables, 32 beside 64 negatives, and a ranker over worlds. The last section
is written by hand; figures there that no table has are of runs that were not kept.

## In short: the paper's orderings

{in_short(tables)}

## Retrieval: medmentions_open

Commands: `pel-ray run jobs/paper/open/longer.yaml`; for smaller steps of FGSM `pel-ray run jobs/paper/open/fgsm.yaml`

34,480 entities and 4,871 test mentions (`python benchmarks/real_files.py`). Unseen: of the test mentions, those whose
entity training never saw. The untrained encoder and what is below it are of the table of short runs, on the same
mentions.

{tables.retrieval("longer")}

{tables.settings("longer")}

The paper's figures are with 64 negatives, but those with FGSM with 32; with 32 and mixed negatives it has without FGSM
{with_32()} (recall@1 / recall@64), which the differences below compare with.

{tables.orderings("longer")}

## Retrieval in short runs, all rows and baselines: medmentions_open

Commands: `pel-ray run jobs/paper/open/retrieval.yaml`; for MultipleNegativesRankingLoss
`python jobs/paper/open/mnrl.py --seed 1`, `python jobs/paper/open/mnrl.py --seed 2`, then
`pel-ray run jobs/paper/open/mnrl.yaml`; for smaller steps of FGSM `pel-ray run jobs/paper/open/fgsm.yaml`

Less than a third of the training of the table above, so that more rows could be run; the paper's figures are the same.

{tables.retrieval("retrieval")}

{tables.settings("retrieval")}

{tables.orderings("retrieval")}

## Gradient norms

Commands: as for retrieval and zero-shot, whose runs these are; the figure is of the first table of zero-shot, as the
paper's is of ZESHEL.

{gradients}

After the warm-up, of every step. The paper says that the norms of Pb have considerably lower variance.

{tables.gradients()}

{tables.orderings("gradients")}

## Zero-shot, new worlds: wordnet_el with a pool for each world

Commands: `python jobs/paper/open/worlds.py`, then `pel-ray run jobs/paper/open/zero-shot-worlds.yaml`

As in ZESHEL: a world is a lexicographer file, a mention is told from the senses of its world, and training, validation
and test have worlds of their own. Ours is the mean over the worlds (macro); the paper's retrieval on ZESHEL is micro,
so ours is shown too.

{tables.retrieval("zero-shot-worlds")}

{tables.settings("zero-shot-worlds")}

{tables.orderings("zero-shot-worlds")}

## Zero-shot, new senses: wordnet_el

Command: `pel-ray run jobs/paper/open/zero-shot-longer.yaml`

The splits of wordnet_el itself share no sense, but all worlds, and a mention is told from all senses of the KB: the
senses of test mentions are among the negatives of training, and never its golds.

{tables.retrieval("zero-shot-longer")}

{tables.settings("zero-shot-longer")}

{tables.orderings("zero-shot-longer")}

## Zero-shot, new senses, in short runs and with baselines: wordnet_el

Command: `pel-ray run jobs/paper/open/zero-shot.yaml`

A fifth of the training of the table above.

{tables.retrieval("zero-shot")}

{tables.settings("zero-shot")}

{tables.orderings("zero-shot")}

## NIL: medmentions_open without anatomy

Command: `pel-ray run jobs/paper/open/nil.yaml`

{tables.nil()}

By chance auPR would be {tables.nil_share}.
Precision and recall are of NIL, recall@1 and recall@64 over all classes with NIL as one.

{tables.settings("nil")}

{tables.orderings("nil")}

{curves}

## Ranker: medmentions_open

Commands: `pel-ray run jobs/paper/open/longer.yaml`, then `pel-ray run jobs/paper/open/ranker.yaml`

{tables.ranker()}

Both are recall@1; normalised: of the mentions whose gold is among the k candidates. The paper ranks 16 candidates. It
does not say whether its ranker with FGSM has the candidates of the one without; here each has those of its retriever.

{tables.settings("ranker")}

{tables.orderings("ranker")}

## Refreshing hard negatives

Command: `pel-ray run jobs/paper/open/refresh.yaml`

{tables.refresh()}

{tables.settings("refresh")}

{tables.orderings("refresh")}

{notes}"""


def section(notes: Path) -> str:
    """What docs/results/notes.md says, if it is there."""
    return f"## What we tried and why it may differ\n\n{notes.read_text().strip()}\n" if notes.is_file() else ""


def build(docs: Path) -> None:
    out = docs / "results"
    records = Records.read(out / "records")
    if not records.runs:
        raise PelRayError(f"{out / 'records'} has no records: collect some first (python docs/results.py collect)")
    gradients = picture(draw_gradients(records, out / "gradients.png"), "gradients", GRADIENTS)
    curves = picture(draw_nil(records, out / "nil.png"), "nil", CURVES)
    text = page(Tables(records), gradients, curves, section(out / "notes.md"))
    # A table that was not run has no settings to tell.
    (docs / "results.md").write_text(re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n")
    print(f"{docs / 'results.md'}: of {len(records.runs)} runs")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["collect", "page"], default="page")
    parser.add_argument("runs", nargs="?", type=Path, default=Path("runs/paper/open"))
    parser.add_argument("--docs", type=Path, default=Path(__file__).parent, help="where results.md and results/ are")
    given = parser.parse_args(arguments)
    try:
        if given.what == "page":
            build(given.docs)
        elif not given.runs.is_dir():
            raise PelRayError(f"{given.runs} is not there: run the pipelines in jobs/paper/open first")
        else:
            names = collect(given.runs, given.docs / "results" / "records")
            print(f"{given.docs / 'results' / 'records'}: {len(names)} records written: {', '.join(names)}")
    except PelRayError as error:
        sys.exit(f"results: error: {error}")


if __name__ == "__main__":
    main()
