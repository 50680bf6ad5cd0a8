"""A retriever by sentence-transformers' MultipleNegativesRankingLoss, to stand beside the rows of the retrieval table.

The encoder, its pooling, the texts, the mentions and their order, the optimiser and the number of steps are those of a
row of jobs/paper/open/retrieval; one transformer serves both sides, and a mention's negatives are the golds of the
other mentions of its batch. The result is a pel-ray model folder:

    python jobs/paper/open/mnrl.py [--seed 1] [--out runs/paper/open/retrieval/mnrl/seed-1]

It needs the step data of jobs/paper/open/retrieval.yaml. Where the model is there already, it does nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn

from pel_ray.encoder import BiEncoder, Side, is_saved_model, load_model, save_whole
from pel_ray.errors import PelRayError
from pel_ray.golds import rows_at
from pel_ray.optimiser import learning_rate, make_optimiser
from pel_ray.progress import RateProgress
from pel_ray.spec import resolve
from pel_ray.steps.train_plan import TrainPlan, TrainSettings
from pel_ray.text import FIELDS, MENTION_COLUMNS
from pel_ray.training_learner import prepare

ROW = "jobs/paper/open/retrieval/pb-random.yaml"
SIDES: tuple[Side, Side] = ("mention", "entity")


class SentenceModel(nn.Module):
    """One transformer as sentence-transformers calls its models, pooled as the side of a text asks."""

    def __init__(self, model: BiEncoder) -> None:
        super().__init__()
        self.towers = nn.ModuleDict({side: model.tower(side) for side in SIDES})
        # Mentions are pooled between their markers, entities over their title.
        self.towers["entity"].transformer = self.towers["mention"].transformer

    def forward(self, features: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        tower = self.towers[features["side"]]
        return {"sentence_embedding": tower(features["input_ids"], features["attention_mask"])}


def padded(texts: Sequence[Sequence[int]], side: Side, pad: int) -> dict[str, Any]:
    length = max(map(len, texts))
    ids = torch.tensor([[*text, *[pad] * (length - len(text))] for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in texts])
    return {"input_ids": ids, "attention_mask": mask, "side": side}


def train(model: BiEncoder, plan: TrainPlan) -> None:
    """Leaves the trained transformer on both sides."""
    settings, mentions = plan.settings.optimiser, plan.mentions()
    prepare(model.mention_tower.transformer, settings)
    both = SentenceModel(model).train()
    loss = MultipleNegativesRankingLoss(both)
    optimiser = make_optimiser(both, settings)
    rows = rows_at(plan.data.mentions, mentions.rows, MENTION_COLUMNS)
    texts = model.texts.mentions([rows[row] for row in mentions.rows])
    golds = [golds[0] for golds in mentions.golds]
    entities = rows_at(plan.data.kb, golds, FIELDS)
    entity_texts = dict(zip(entities, model.texts.entities(list(entities.values())), strict=True))
    num_steps = -(-len(texts) // settings.batch_size)
    num_all = num_steps * settings.epochs
    with RateProgress("training", num_all) as progress:
        for epoch in range(settings.epochs):
            order = np.random.default_rng((plan.settings.seed, epoch)).permutation(len(texts))
            for step in range(num_steps):
                numbers = order[step * settings.batch_size : (step + 1) * settings.batch_size]
                sides = [[texts[number] for number in numbers], [entity_texts[golds[number]] for number in numbers]]
                for group in optimiser.param_groups:
                    group["lr"] = learning_rate(settings, epoch * num_steps + step, num_all)
                optimiser.zero_grad()
                features = [padded(some, side, model.markers.pad) for side, some in zip(SIDES, sides, strict=True)]
                value = loss(features, torch.empty(0))
                if not value.isfinite():
                    sys.exit(f"the loss is {value.item()} at epoch {epoch + 1}, step {step + 1}")
                value.backward()
                nn.utils.clip_grad_norm_(both.parameters(), settings.clip)
                optimiser.step()
                progress.add(1)


def make(data: str, out: Path, seed: int) -> None:
    if is_saved_model(out / "model"):
        print(f"{out / 'model'}: already done, nothing to do")
        return
    flags = {"data": data, "out": str(out), "seed": seed}
    plan = TrainPlan(resolve(TrainSettings, spec=ROW, flags=flags))
    torch.manual_seed(seed)
    model = load_model(plan.settings.model)
    train(model, plan)
    out.mkdir(parents=True, exist_ok=True)
    save_whole(model, out / "model")
    print(f"{out / 'model'}: trained; test it with encode-kb and evaluate, as jobs/paper/open/mnrl.yaml does")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="runs/paper/open/medmentions")
    parser.add_argument("--out", default=None)
    given = parser.parse_args(arguments)
    try:
        make(given.data, Path(given.out or f"runs/paper/open/retrieval/mnrl/seed-{given.seed}"), given.seed)
    except PelRayError as error:
        sys.exit(f"mnrl: error: {error}")


if __name__ == "__main__":
    main()
