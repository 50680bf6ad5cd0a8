"""Speed and memory of training, both sides in one run, with the same weights, mentions and candidates.

Data: the Human Phenotype Ontology with its synonyms as mentions, and three layers of MiniLM. The other side is the loop
of peers: every text padded to 128 pieces, an entity drawn for several mentions encoded each time. The memory of
BERT-base towers on a GPU is simulated on tensors without content: no GPU was used.

    python benchmarks/train.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from _figures import Figures

from pel_ray.adversarial import AdversarialSettings
from pel_ray.chunks import Pieces, auto_chunk_tokens
from pel_ray.encoder import BiEncoder, ModelSettings, load_model
from pel_ray.losses import retrieval_loss
from pel_ray.objective import Objective, ObjectiveSettings, TrainingBatch
from pel_ray.steps.import_obo import OboSettings, import_obo
from pel_ray.steps.quickstart import hpo_file
from pel_ray.steps.train import train
from pel_ray.steps.train_plan import TrainSettings
from pel_ray.storage import locate
from pel_ray.tables import TableFolder
from pel_ray.training_memory import step_memory

LENGTH = 128
V100_BYTES = 16 * 2**30


def import_hpo(home: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    with contextlib.redirect_stderr(io.StringIO()):
        import_obo(OboSettings(file=str(hpo_file()), out=str(home / "data"), mentions="synonyms"))
    folders = [TableFolder.open(locate(home / "data" / kind), kind) for kind in ("kb", "mentions")]
    kb, mentions = ([row for table in folder.tables() for row in table.to_pylist()] for folder in folders)
    return kb, mentions


def make_batch(model: BiEncoder, tables: Any, number: int, share: float) -> TrainingBatch:
    """Eight mentions with their gold and 16 negatives each, from a pool of `share` times as many entities."""
    num_mentions, num_negatives = 8, 16
    kb, mentions = tables
    chance = np.random.default_rng(number)
    some = [mentions[row] for row in chance.integers(0, len(mentions), num_mentions)]
    rows = {entity["entity_id"]: row for row, entity in enumerate(kb)}
    golds = np.array([rows[mention["entity_ids"][0]] for mention in some])
    pool = chance.choice(len(kb), int(num_mentions * num_negatives * share), replace=False)
    candidates = np.concatenate([golds[:, None], chance.choice(pool, (num_mentions, num_negatives))], axis=1)
    used, columns = np.unique(candidates, return_inverse=True)
    texts = model.texts
    return TrainingBatch(
        Pieces.of(texts.mentions(some)),
        Pieces.of(texts.entities([kb[row] for row in used])),
        columns.reshape(candidates.shape),
    )


def peers_loss(model: BiEncoder, batch: TrainingBatch, settings: ObjectiveSettings) -> torch.Tensor:
    """Padded to 128, candidates encoded mention by mention, all in one graph."""
    mentions_BD = _padded(model.mention_tower, batch.mentions, np.arange(len(batch.mentions)))
    vectors_BCD = _padded(model.entity_tower, batch.entities, batch.columns_BC.ravel())
    scores_BC = torch.einsum("bd,bcd->bc", mentions_BD, vectors_BCD.view(*batch.columns_BC.shape, -1))
    return retrieval_loss(scores_BC, settings.loss)


def _padded(tower: Any, pieces: Pieces, rows: np.ndarray) -> torch.Tensor:
    ids = np.zeros((len(rows), LENGTH), np.int64)
    mask = np.zeros((len(rows), LENGTH), np.int64)
    for place, row in enumerate(rows):
        text = pieces.flat[pieces.offsets[row] : pieces.offsets[row + 1]]
        ids[place, : len(text)], mask[place, : len(text)] = text, 1
    return torch.nn.functional.normalize(tower(torch.from_numpy(ids), torch.from_numpy(mask)), dim=1)


def step_seconds(loss_of: Callable[[TrainingBatch], torch.Tensor], batch: TrainingBatch) -> tuple[float, float]:
    began = time.perf_counter()
    loss = loss_of(batch)
    loss.backward()
    return time.perf_counter() - began, float(loss.detach())


def against_peers(model: BiEncoder, home: Any, num_steps: int, figures: Figures) -> None:
    settings = ObjectiveSettings()
    objective = Objective(model, settings)
    ratios, differences = [], []
    for number in range(num_steps):
        batch = make_batch(model, home, number, 2 / 3)
        ours, our_loss = step_seconds(lambda some: objective(some)[0], batch)
        theirs, their_loss = step_seconds(lambda some: peers_loss(model, some, settings), batch)
        objective.zero_grad(set_to_none=True)
        if number:
            ratios.append(theirs / ours)
            differences.append(abs(our_loss - their_loss) / their_loss)
    print(f"8 mentions x 16 negatives, texts of {np.diff(batch.entities.offsets).mean():.0f} pieces", flush=True)
    figures.at_least("train_steps_over_padded_and_duplicated", float(np.median(ratios)), 2.5)
    figures.at_most("train_relative_difference_of_the_loss_x10000", max(differences) * 10000, 1.0)


def cost_of_fgsm(model: BiEncoder, home: Any, num_steps: int, figures: Figures) -> None:
    # Room for both to keep their activations: else only one of them would compute them twice.
    chunk_tokens = 16_384
    adversarial = Objective(
        model, ObjectiveSettings(adversarial=AdversarialSettings(fgsm=True), chunk_tokens=chunk_tokens)
    )
    plain = Objective(model, ObjectiveSettings(chunk_tokens=chunk_tokens))
    # As good as no entity twice, as in a large KB: FGSM moves each for its own mention, so repeats would cost it more.
    ratios = []
    for number in range(num_steps):
        batch = make_batch(model, home, number, 100)
        with_fgsm, _ = step_seconds(lambda some: adversarial(some)[0], batch)
        without, _ = step_seconds(lambda some: plain(some)[0], batch)
        plain.zero_grad(set_to_none=True)
        if number:
            ratios.append(with_fgsm / without)
    figures.at_most("train_fgsm_over_without", float(np.median(ratios)), 2.6)


def two_workers(home: Path, figures: Figures) -> None:
    """Steps a second of one and two Ray Train workers with one thread each, from their own metrics."""
    import logging

    import ray

    rates = {}
    for workers in (1, 2):
        out = home / f"run-{workers}"
        ray.init(
            address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
        settings = TrainSettings.model_validate(
            {
                "data": str(home / "few"),
                "out": str(out),
                "model": {"layers": 3, "text": {"entity_length": 32, "mention_length": 16}},
                "negatives": {"num_negatives": 15},
                "optimiser": {"epochs": 1, "batch_size": 16, "micro_batch": 8, "freeze_embeddings": True},
                "validation": {"validation_mentions": 8},
                "log_steps": 2,
                "resources": {"workers": workers, "cpus": 1},
            }
        )
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            train(settings)
        ray.shutdown()
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        rates[workers] = float(np.median([line["steps_per_second"] for line in lines if "loss" in line][2:]))
        print(f"{workers} workers of one thread: {rates[workers]:.2f} steps/s", flush=True)
    figures.at_least("train_two_workers_over_one", rates[2] / rates[1], 1.6)


def write_few(home: Path, kb: list[dict[str, Any]], mentions: list[dict[str, Any]]) -> None:
    """A data set small enough for an epoch of some seconds."""
    from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl

    known = {row["entity_id"] for row in kb[:2000]}
    within = [mention for mention in mentions if mention["entity_ids"][0] in known]
    chosen = [mention for mention in within if mention["split"] == "train"][:480]
    chosen += [mention for mention in within if mention["split"] == "validation"][:8]
    (home / "kb.jsonl").write_text("".join(json.dumps(row | {"id": row["entity_id"]}) + "\n" for row in kb[:2000]))
    rows = [row | {"label": row["entity_ids"]} for row in chosen]
    (home / "mentions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_jsonl(
        JsonlSettings(kb=[str(home / "kb.jsonl")], mentions=[str(home / "mentions.jsonl")], out=str(home / "few"))
    )


def gpu_memory(figures: Figures) -> None:
    """Two BERT-base towers, 128 pieces, 64 negatives, FGSM, half precision: simulated, and not run on a GPU."""
    from transformers import BertConfig

    config = BertConfig()
    free = V100_BYTES - 2**30 - 2 * 110_000_000 * 16
    settings = ObjectiveSettings.model_validate(
        {"adversarial": {"fgsm": True}, "chunk_tokens": auto_chunk_tokens(config, free)}
    )
    peaks = {}
    for num_negatives in (16, 64):
        found = step_memory(
            config,
            settings,
            mention_length=LENGTH,
            entity_length=LENGTH,
            micro_batch=4,
            num_negatives=num_negatives,
            half_precision=True,
        )
        peaks[num_negatives] = found.parts["activations"]
        shown = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in found.parts.items())
        print(f"simulated, {num_negatives} negatives, chunks of {settings.chunk_tokens} pieces: {shown}", flush=True)
    figures.at_most("train_simulated_gib_64_negatives_fgsm_bert_base", found.total / 2**30, 16.0)
    figures.at_most("train_activations_64_over_16_negatives", peaks[64] / peaks[16], 1.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps, no workers, no simulation")
    quick = parser.parse_args().quick
    figures = Figures()
    with TemporaryDirectory() as temporary:
        home = Path(temporary)
        tables = import_hpo(home)
        model = load_model(ModelSettings(layers=3))
        # Without dropout, or the two sides could not have the same loss.
        for tower in (model.mention_tower, model.entity_tower):
            tower.eval()
        against_peers(model, tables, 3 if quick else 7, figures)
        cost_of_fgsm(model, tables, 3 if quick else 7, figures)
        if not quick:
            write_few(home, *tables)
            two_workers(home, figures)
            gpu_memory(figures)
    figures.finish()


if __name__ == "__main__":
    main()
