"""A retriever by sentence-transformers' MultipleNegativesRankingLoss, to stand beside the rows of the retrieval table.

The encoder, its pooling, the texts, the mentions and their order, the optimiser and the number of steps are those of a
row of jobs/paper/open/retrieval; one tower serves both sides, and a mention's negatives are the golds of the other
mentions of its batch. The result is a pel-ray model folder:

    python jobs/paper/open/mnrl.py [--seed 1] [--out runs/paper/open/retrieval/mnrl/seed-1]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers.losses import MultipleNegativesRankingLoss
from torch import nn

from pel_ray.encoder import BiEncoder, Tower, load_model, save_whole
from pel_ray.golds import entities_at
from pel_ray.optimiser import learning_rate, make_optimiser
from pel_ray.progress import RateProgress
from pel_ray.spec import resolve
from pel_ray.steps.train_plan import TrainPlan, TrainSettings
from pel_ray.text import FIELDS, MENTION_COLUMNS
from pel_ray.training_learner import prepare

ROW = "jobs/paper/open/retrieval/pb-random.yaml"


class SentenceModel(nn.Module):
    """A tower as sentence-transformers calls its models."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, features: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": self.tower(features["input_ids"], features["attention_mask"])}


def padded(texts: Sequence[Sequence[int]], pad: int) -> dict[str, torch.Tensor]:
    length = max(map(len, texts))
    ids = torch.tensor([[*text, *[pad] * (length - len(text))] for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in texts])
    return {"input_ids": ids, "attention_mask": mask}


def train(model: BiEncoder, plan: TrainPlan) -> None:
    """Leaves the trained tower on both sides."""
    settings, mentions = plan.settings.optimiser, plan.mentions()
    tower = model.mention_tower
    prepare(tower.transformer, settings)
    loss = MultipleNegativesRankingLoss(SentenceModel(tower.train()))
    optimiser = make_optimiser(tower, settings)
    rows = entities_at(plan.data.mentions, mentions.rows, MENTION_COLUMNS)
    texts = model.texts.mentions([rows[row] for row in mentions.rows])
    golds = [golds[0] for golds in mentions.golds]
    entities = entities_at(plan.data.kb, golds, FIELDS)
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
                loss([padded(side, model.markers.pad) for side in sides], torch.empty(0)).backward()
                nn.utils.clip_grad_norm_(tower.parameters(), settings.clip)
                optimiser.step()
                progress.add(1)
    model.entity_tower.load_state_dict(tower.state_dict())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="runs/paper/open/medmentions")
    parser.add_argument("--out", default=None)
    given = parser.parse_args()
    out = Path(given.out or f"runs/paper/open/retrieval/mnrl/seed-{given.seed}")
    flags = {"data": given.data, "out": str(out), "seed": given.seed}
    plan = TrainPlan(resolve(TrainSettings, spec=ROW, flags=flags))
    torch.manual_seed(given.seed)
    model = load_model(plan.settings.model)
    train(model, plan)
    out.mkdir(parents=True, exist_ok=True)
    save_whole(model, out / "model")
    print(f"{out / 'model'}: trained; test it with encode-kb and evaluate, as jobs/paper/open/mnrl.yaml does")


if __name__ == "__main__":
    main()
