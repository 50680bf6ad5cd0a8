"""What training a ranker, or learning from one, will take, before it starts."""

from __future__ import annotations

from pel_ray.adversarial import AdversarialSettings
from pel_ray.calibration import Sample, Speed, chunk_to_measure, device_here, measure
from pel_ray.encoder import Precision
from pel_ray.golds import GoldMentions, gold_mentions
from pel_ray.objective import choose_chunk_tokens
from pel_ray.rank_objective import RankObjective, RankObjectiveSettings
from pel_ray.ranker import RankerParts, load_ranker
from pel_ray.steps.distil_plan import DistilPlan, DistilSettings
from pel_ray.steps.rank_plan import RankPlan, RankTrainSettings
from pel_ray.steps.train_estimate import (
    Lines,
    disk_lines,
    memory_lines,
    mention_lines,
    model_bytes,
    num_validations,
    planned_step,
    retriever_lines,
    time_lines,
)
from pel_ray.training_memory import StepMemory, rank_step_memory


def estimate_ranker(settings: RankTrainSettings) -> Lines:
    """Lines of (what, how much)."""
    plan = RankPlan(settings)
    mentions = gold_mentions(plan.data.mentions, plan.data.kb, settings.split).golden()
    num_candidates, fgsm = settings.candidates.num_candidates, settings.objective.adversarial.fgsm
    sample, memory = _sample(plan, mentions, plan.parts), _memory(plan)
    pieces = num_candidates * sample.pair_pieces
    micro_batch = settings.optimiser.micro_batch * (1 + fgsm)
    speed = _speed(plan.parts, settings.objective, micro_batch * pieces, sample, settings.precision)
    num_watched, num_times = _num_watched(plan), num_validations(settings.optimiser, settings.validation)
    seconds = {
        "training": len(mentions) * settings.optimiser.epochs * pieces * (1 + fgsm) / speed.training,
        f"validating {num_times} times": num_watched * num_times * pieces / speed.encoding,
    }
    disk = {
        "models and checkpoints": model_bytes(memory, settings.optimiser, settings.keep_checkpoints),
        "word pieces": plan.data.kb.num_rows * (sample.entity_pieces * 4 + 40),
    }
    return [
        *mention_lines(mentions, settings.optimiser, num_candidates, "pairs"),
        ("validation", f"{num_watched:,} mentions of {settings.validation.validation_split}, {num_times} times"),
        ("pairs", f"of {sample.pair_pieces:.1f} pieces, {sample.mention_pieces:.1f} of them the mention's"),
        *time_lines(speed, seconds, settings.resources),
        *memory_lines(memory),
        *disk_lines(disk),
        ("already done", "yes" if plan.done else "no"),
    ]


def estimate_distilling(settings: DistilSettings) -> Lines:
    """Lines of (what, how much): the ranker's part, then the training of the retriever."""
    plan = DistilPlan(settings)
    mentions = plan.mentions()
    num_candidates = settings.candidates.num_candidates
    sample = _sample(plan, mentions, plan.ranker)
    speed = _speed(plan.ranker, RankObjectiveSettings(), 0, sample, settings.precision)
    seconds = {"scoring candidates once": len(mentions) * num_candidates * sample.pair_pieces / speed.encoding}
    return [
        *mention_lines(mentions, settings.optimiser, plan.settings.negatives.num_negatives + 1, "entities"),
        ("the ranker", f"scores {len(mentions) * num_candidates:,} pairs of {sample.pair_pieces:.1f} pieces"),
        *retriever_lines(plan, mentions, seconds),
    ]


def _sample(plan: RankPlan | DistilPlan, mentions: GoldMentions, ranker: RankerParts) -> Sample:
    return Sample.of(plan.data.mentions, mentions.rows, plan.data.kb, ranker.texts)


def _num_watched(plan: RankPlan) -> int:
    watched = plan.settings.validation
    found = gold_mentions(plan.data.mentions, plan.data.kb, watched.validation_split)
    return min(len(found) - found.num_nil, watched.validation_mentions or len(found))


def _speed(
    parts: RankerParts, objective: RankObjectiveSettings, pieces: float, sample: Sample, precision: Precision
) -> Speed:
    """Of the ranker, in micro-batches of so many pieces."""
    ranker = load_ranker(parts.settings)
    ranker.module.to(device_here()).train()
    text, asked = parts.settings.text, objective.chunk_tokens
    chunk = choose_chunk_tokens([ranker.module], text.mention_length + text.entity_length) if asked == "auto" else asked
    measured = objective.model_copy(update={"chunk_tokens": chunk_to_measure(pieces, chunk)})
    plain = measured.model_copy(update={"adversarial": AdversarialSettings()})
    return measure(RankObjective(ranker, measured), RankObjective(ranker, plain), sample.ranker_batch(), precision)


def _memory(plan: RankPlan) -> StepMemory:
    step = planned_step(plan.settings, plan.parts.base, "mention")
    text, num_candidates = plan.parts.settings.text, plan.settings.candidates.num_candidates
    return rank_step_memory(**step, text=text, num_candidates=num_candidates)
