"""Mentions a second of a Linker beside a plain loop over the same model and vectors; both sides in one run.

The mentions are real: the test split of medmentions_open where PEL_RAY_DATA (default ../shared/data) has it, else
synonyms of the Human Phenotype Ontology; the KB is encoded once by three layers of MiniLM, in runs/bench, and kept for
the next run. The plain loop is what one writes first: the tokenizer and the encoder of transformers, batches of 32 in
the order of the file, padded to the longest, and an IndexFlatIP that has all vectors in memory. The bar is for mentions
in their sentences; in whole abstracts every text fills the window, there is no padding to save, and no bar.

    python benchmarks/link.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from _figures import Figures
from _mentions import in_its_sentence

from pel_ray.encoder import load_tower
from pel_ray.link_source import LinkSource, text_column
from pel_ray.linker import Link, Linker
from pel_ray.steps.encode_kb import EncodeSettings, encode_kb
from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl
from pel_ray.steps.import_obo import OboSettings, import_obo
from pel_ray.steps.quickstart import hpo_file
from pel_ray.storage import locate
from pel_ray.tables import TableFolder
from pel_ray.text import MENTION_COLUMNS
from pel_ray.vectors import VectorFolder

DATA = Path(os.environ.get("PEL_RAY_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
KEPT = Path(__file__).parent.parent / "runs" / "bench"
K, BATCH = 16, 32
Mentions = Sequence[dict[str, str]]


def real_data(quick: bool) -> tuple[Path, Path]:
    """Data set and vectors of real entities, made once; --quick has one layer and short entity texts."""
    source = DATA / "medmentions_open"
    name = "medmentions_open" if source.is_dir() else "hpo"
    data, vectors = KEPT / name, KEPT / f"{name}-link{'-quick' if quick else ''}"
    text = {"entity_length": 16 if quick else 40, "mention_length": 128}
    model = {"layers": 1 if quick else 3, "pooling": "mention", "text": text}
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        if name == "hpo":
            import_obo(OboSettings(file=str(hpo_file()), out=str(data), mentions="synonyms"))
        else:
            documents = [str(DATA / "medmentions" / "docs.jsonl.gz")]
            mentions = [f"test={source / 'mentions.test.jsonl.gz'}"]
            kb = [str(source / "kb.jsonl.gz")]
            import_jsonl(JsonlSettings(kb=kb, documents=documents, mentions=mentions, out=str(data)))
        encode_kb(EncodeSettings.model_validate({"kb": str(data), "out": str(vectors), "model": model}))
    return data, vectors


class PlainLoop:
    """The same tower and texts, encoded as they come and searched in memory."""

    def __init__(self, source: LinkSource) -> None:
        assert isinstance(source.searched, VectorFolder)
        self._texts, self._pad = source.parts.texts, source.parts.markers.pad
        self._tower = load_tower(source.parts, "mention").eval()
        self._ids = text_column(source.kb, "entity_id").to_pylist()
        self._index = faiss.IndexFlatIP(source.searched.dimension)
        for _, vectors in source.searched.shards():
            self._index.add(vectors.astype(np.float32))

    def link(self, mentions: Mentions) -> Iterator[tuple[str, float]]:
        """The best entity and its score."""
        for begin in range(0, len(mentions), BATCH):
            pieces = self._texts.mentions(mentions[begin : begin + BATCH])
            width = max(map(len, pieces))
            ids = torch.tensor([[*some, *[self._pad] * (width - len(some))] for some in pieces])
            mask = torch.tensor([[1] * len(some) + [0] * (width - len(some)) for some in pieces])
            with torch.inference_mode():
                vectors = torch.nn.functional.normalize(self._tower(ids, mask), dim=1)
            scores, rows = self._index.search(vectors.numpy(), K)
            yield from ((self._ids[row], float(score)) for row, score in zip(rows[:, 0], scores[:, 0], strict=True))


def timed(work: Callable[[Mentions], list[Any]], mentions: Mentions) -> tuple[float, list[Any]]:
    began = time.perf_counter()
    found = work(mentions)
    return time.perf_counter() - began, found


def in_turns(linker: Linker, plain: PlainLoop, mentions: Mentions) -> tuple[float, float]:
    """How many times as fast, by parts of the mentions in turns so that both meet the same noise; and % alike."""
    ratios, seconds, same, identical = [], [0.0, 0.0], 0, 0
    for part in np.array_split(np.arange(len(mentions)), 3):
        some = [mentions[number] for number in part]
        ours, links = timed(lambda given: list(linker.link(given)), some)
        theirs, found = timed(lambda given: list(plain.link(given)), some)
        ratios.append(theirs / ours)
        seconds = [seconds[0] + ours, seconds[1] + theirs]
        identical += sum(link.entity_id == entity_id for link, (entity_id, _) in zip(links, found, strict=True))
        same += sum(is_alike(link, *best) for link, best in zip(links, found, strict=True))
    for name, taken in zip(("Linker", "plain loop"), seconds, strict=True):
        print(f"{name}: {len(mentions) / taken:.0f} mentions/s", flush=True)
    print(f"the very same entity: {100 * identical / len(mentions):.2f}%", flush=True)
    return float(np.median(ratios)), 100 * same / len(mentions)


def is_alike(link: Link, entity_id: str, score: float) -> bool:
    """The same entity, or one of equal score: entities of equal texts have equal vectors, and FAISS takes any."""
    ties = {one.entity_id for one in link.candidates if abs(one.score - link.candidates[0].score) < 1e-5}
    return entity_id in ties or abs(score - link.candidates[0].score) < 1e-6


def one_at_a_time(linker: Linker, mentions: Mentions) -> None:
    taken = [timed(lambda given: list(linker.link(given)), [mention])[0] * 1000 for mention in mentions]
    print(
        f"one mention: {np.median(taken):.1f} ms at the median, {np.quantile(taken, 0.95):.1f} at the 95th percentile"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one layer, and fewer mentions")
    quick, figures = parser.parse_args().quick, Figures()
    data, vectors = real_data(quick)
    table = TableFolder.open(locate(data / "mentions"), "mentions")
    whole = table.rows(0, 900 if quick else min(table.num_rows, 3072), MENTION_COLUMNS).to_pylist()
    mentions = [in_its_sentence(mention) for mention in whole]
    source = LinkSource.open(vectors)
    linker, plain = Linker(source, K), PlainLoop(source)
    for warm in (linker, plain):
        list(warm.link(mentions[:BATCH]))
    print(f"{len(mentions):,} mentions of {data.name} in sentences, {source.kb.num_rows:,} entities, k {K}", flush=True)
    ratio, percent = in_turns(linker, plain, mentions)
    figures.at_least("link_over_plain_loop", ratio, 1.5)
    figures.at_least("link_percent_with_the_same_entity_or_a_tie", percent, 99.0)
    one_at_a_time(linker, mentions[:50])
    num_whole = len(whole) // 4
    print(f"{num_whole:,} of them in whole abstracts", flush=True)
    print(
        f"Linker over plain loop, no padding to save: {in_turns(linker, plain, whole[:num_whole])[0]:.2f}", flush=True
    )
    figures.finish()


if __name__ == "__main__":
    main()
