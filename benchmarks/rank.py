"""Speed of ranking, both sides in one run, with the same weights, mentions and candidates.

Mentions: medmentions_open where PEL_RAY_DATA (default ../shared/data) has it, else synonyms of the Human Phenotype
Ontology, which have no context. Candidates: the 16 entities of each with the most alike names. Weights: three layers of
MiniLM. The other side is the loop of peers: the candidates of a mention in one batch, every text padded to 256 pieces.
The bar is for mentions in their sentences; in whole abstracts the mention's half of the window is always full, which is
printed beside, without a bar.

    python benchmarks/rank.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from _figures import Figures
from _mentions import in_its_sentence

from pel_ray.baselines import tfidf_hits
from pel_ray.chunks import Pieces
from pel_ray.golds import rows_at
from pel_ray.ranker import Ranker, RankerSettings, load_ranker
from pel_ray.reranker import Reranker
from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl
from pel_ray.steps.import_obo import OboSettings, import_obo
from pel_ray.steps.quickstart import hpo_file
from pel_ray.storage import locate
from pel_ray.tables import DataSet
from pel_ray.tokens import COLUMNS

DATA = Path(os.environ.get("PEL_RAY_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
LENGTH, NUM_CANDIDATES, MENTIONS_PER_TURN = 256, 16, 8


def import_data(folder: Path) -> DataSet:
    source = DATA / "medmentions_open"
    with contextlib.redirect_stderr(io.StringIO()):
        if source.is_dir():
            mentions = [f"test={source / 'mentions.test.jsonl.gz'}"]
            documents = [str(DATA / "medmentions" / "docs.jsonl.gz")]
            kb = [str(source / "kb.jsonl.gz")]
            import_jsonl(JsonlSettings(kb=kb, documents=documents, mentions=mentions, out=str(folder)))
        else:
            import_obo(OboSettings(file=str(hpo_file()), out=str(folder), mentions="synonyms"))
    return DataSet.open(locate(folder))


def choose_mentions(data: DataSet, num_mentions: int) -> list[dict[str, Any]]:
    rows = [row for table in data.mentions.tables() for row in table.to_pylist()]
    chosen = np.random.default_rng(13).choice(len(rows), num_mentions, replace=False)
    return [rows[number] for number in chosen]


def peers_scores(ranker: Ranker, mention: list[int], entities: list[np.ndarray]) -> np.ndarray:
    ids, mask = np.full((len(entities), LENGTH), ranker.pad), np.zeros((len(entities), LENGTH), np.int64)
    for place, entity in enumerate(entities):
        text = [*mention, *entity[1:]]
        ids[place, : len(text)], mask[place, : len(text)] = text, 1
    with torch.inference_mode():
        return ranker.module(torch.from_numpy(ids), torch.from_numpy(mask))[:, 0].numpy()


class EntityTexts:
    """Word pieces of a few entities by row, as a TokenTable gives them."""

    def __init__(self, data: DataSet, ranker: Ranker, rows: np.ndarray) -> None:
        entities = rows_at(data.kb, rows.tolist(), COLUMNS)
        self._pieces = dict(zip(entities, ranker.texts.entities(list(entities.values())), strict=True))

    def take(self, rows: np.ndarray) -> Pieces:
        return Pieces.of([self._pieces[row] for row in rows.tolist()])


def against_peers(data: DataSet, ranker: Ranker, mentions: list[dict[str, Any]]) -> tuple[float, float]:
    """How many times the pairs/s of the peers' loop ours are, and the largest difference of two scores."""
    num_turns = len(mentions) // MENTIONS_PER_TURN
    rows_QK = tfidf_hits(data.kb, [row["mention"] for row in mentions], NUM_CANDIDATES, None).rows_QK
    entities = EntityTexts(data, ranker, np.unique(rows_QK))
    reranker = Reranker(ranker, entities, "fp32")  # type: ignore[arg-type]
    rates, differences, lengths = [], [], []
    for turn in range(num_turns):
        some = slice(turn * MENTIONS_PER_TURN, (turn + 1) * MENTIONS_PER_TURN)
        began = time.perf_counter()
        ours_QK = reranker.scores(mentions[some], rows_QK[some])
        middle = time.perf_counter()
        theirs_QK = []
        for pieces, rows_K in zip(ranker.texts.mentions(mentions[some]), rows_QK[some], strict=True):
            texts = [entities.take(np.array([row])).flat for row in rows_K]
            theirs_QK.append(peers_scores(ranker, pieces, texts))
            lengths += [len(pieces) + len(text) - 1 for text in texts]
        end = time.perf_counter()
        # The first turn warms both sides up.
        if turn:
            rates.append((ours_QK.size / (middle - began), ours_QK.size / (end - middle)))
        differences.append(float(np.abs(ours_QK - np.stack(theirs_QK)).max()))
    ours, theirs = np.median(rates, axis=0)
    possible = LENGTH / np.mean(lengths)
    print(f"texts of {np.mean(lengths):.0f} pieces on average: padding costs a factor of {possible:.2f}", flush=True)
    print(f"ours: {ours:.1f} pairs/s\npad to {LENGTH}: {theirs:.1f} pairs/s", flush=True)
    return float(np.median([mine / other for mine, other in rates])), max(differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer mentions")
    quick = parser.parse_args().quick
    figures = Figures()
    with TemporaryDirectory() as temporary:
        data = import_data(Path(temporary) / "data")
        ranker = load_ranker(RankerSettings(layers=3))
        whole = choose_mentions(data, (4 if quick else 20) * MENTIONS_PER_TURN)
        ratio, difference = against_peers(data, ranker, [in_its_sentence(mention) for mention in whole])
        figures.at_least("rank_over_pad_to_256", ratio, 2.0)
        figures.at_most("rank_largest_difference_of_scores_x10000", difference * 10000, 1.0)
        print(f"in whole abstracts: {against_peers(data, ranker, whole[: len(whole) // 2])[0]:.2f}", flush=True)
    figures.finish()


if __name__ == "__main__":
    main()
