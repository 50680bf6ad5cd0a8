"""What a training will take, before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pel_ray.adversarial import AdversarialSettings
from pel_ray.calibration import Sample, Speed, chunk_to_measure, device_here, measure
from pel_ray.chunks import CPU_CHUNK_TOKENS
from pel_ray.console import human_bytes
from pel_ray.encoder import Parts, Side, load_model
from pel_ray.golds import GoldMentions
from pel_ray.hugging_face import load_config
from pel_ray.objective import Objective, choose_chunk_tokens
from pel_ray.optimiser import OptimiserSettings
from pel_ray.runtime import Resources
from pel_ray.steps.epoch import num_steps
from pel_ray.steps.rank_plan import RankTrainSettings
from pel_ray.steps.train_plan import TrainPlan, TrainSettings, ValidationSettings
from pel_ray.training_memory import StepMemory, step_memory

PLANNED_MENTIONS = 4
"""Of a micro-batch; activations depend on the chunk, so more of them would only take longer to simulate."""
CHECKPOINT_OVER_WEIGHTS = 3
"""A checkpoint has the weights and two moments of each."""

Lines = list[tuple[str, str]]


def estimate(settings: TrainSettings) -> Lines:
    """Lines of (what, how much)."""
    plan = TrainPlan(settings)
    mentions, negatives = plan.mentions(), settings.negatives
    mining = f"{negatives.num_hard} hard negatives a mention, refresh {negatives.refresh}"
    return [
        *mention_lines(mentions, settings.optimiser, negatives.num_negatives + 1, "entities"),
        ("mining", mining if negatives.num_hard else "none: random negatives"),
        *retriever_lines(plan, mentions),
    ]


def mention_lines(mentions: GoldMentions, optimiser: OptimiserSettings, num_candidates: int, unit: str) -> Lines:
    left_out = f"{mentions.num_nil:,} NIL and {mentions.num_outside:,} with golds outside it are left out"
    steps = num_steps(len(mentions), optimiser)
    return [
        ("mentions", f"{len(mentions):,} with a gold in the KB; {left_out}"),
        (
            "steps",
            f"{steps:,} an epoch, {steps * optimiser.epochs:,} in all, of at most "
            f"{optimiser.batch_size * num_candidates:,} {unit}",
        ),
    ]


def retriever_lines(plan: TrainPlan, mentions: GoldMentions, before: Mapping[str, float] | None = None) -> Lines:
    """Time, memory and disk of a retriever's training, after what takes the seconds `before`."""
    settings, memory = plan.settings, _memory(plan)
    sample = Sample.of(plan.data.mentions, mentions.rows, plan.data.kb, plan.parts.texts)
    speed = _speed(plan, sample)
    pieces = _pieces_per_mention(settings, sample)
    num_encoded = num_validations(settings.optimiser, settings.validation)
    seconds = {
        **(before or {}),
        "training": len(mentions) * settings.optimiser.epochs * pieces / speed.training,
        f"encoding the KB {num_encoded} times": (
            num_encoded * plan.data.kb.num_rows * sample.entity_pieces / speed.encoding
        ),
    }
    dimension = load_config(plan.parts.tower_folder("entity")).hidden_size
    disk = {
        "models and checkpoints": model_bytes(memory, settings.optimiser, settings.keep_checkpoints),
        # Those of the best epoch, beside those that are being validated.
        "vectors": 2 * plan.data.kb.num_rows * dimension * 2,
        "word pieces": plan.data.kb.num_rows * (sample.entity_pieces * 4 + 40),
    }
    return [
        ("texts", f"mentions of {sample.mention_pieces:.1f} pieces, entities of {sample.entity_pieces:.1f}"),
        *time_lines(speed, seconds, settings.resources),
        *memory_lines(memory),
        *disk_lines(disk),
        ("already done", "yes" if plan.done else "no"),
    ]


def num_validations(optimiser: OptimiserSettings, validation: ValidationSettings) -> int:
    """Before the first epoch, after some, and after the last."""
    return 1 + -(-optimiser.epochs // validation.validate_every)


def time_lines(speed: Speed, seconds: dict[str, float], resources: Resources) -> Lines:
    num_workers = 1 if resources.workers == "auto" else resources.workers
    parts = {name: timedelta(seconds=round(took / num_workers)) for name, took in seconds.items()}
    total = timedelta(seconds=round(sum(seconds.values()) / num_workers))
    workers = "such a worker" if num_workers == 1 else f"{num_workers} such workers"
    said = f"{speed.training:,.0f} pieces/s in training, {speed.encoding:,.0f} without gradients"
    return [
        ("rate of a worker here", f"{said} (calibrated on {speed.num_pieces:,} pieces)"),
        (
            "time",
            f"about {total} with {workers}, besides searching and the start of Ray",
        ),
        *((f"  {name}", str(took)) for name, took in parts.items()),
    ]


def memory_lines(memory: StepMemory) -> Lines:
    return [
        ("memory of a worker", f"{human_bytes(memory.total)}, simulated for texts as long as they may be"),
        *((f"  {name}", human_bytes(size)) for name, size in memory.parts.items()),
    ]


def model_bytes(memory: StepMemory, optimiser: OptimiserSettings, keep_checkpoints: int) -> int:
    """The models before and after every epoch, the best once more, and checkpoints, with one in the making."""
    num_models = optimiser.epochs + 2 + CHECKPOINT_OVER_WEIGHTS * (keep_checkpoints + 1)
    return num_models * memory.parts["weights"]


def disk_lines(disk: dict[str, float]) -> Lines:
    return [
        ("disk", f"about {human_bytes(sum(disk.values()))}"),
        *((f"  {name}", human_bytes(size)) for name, size in disk.items()),
    ]


def _pieces_per_mention(settings: TrainSettings, sample: Sample) -> float:
    num_texts = (settings.negatives.num_negatives + 1) * (1 + settings.objective.adversarial.fgsm)
    return sample.mention_pieces + num_texts * sample.entity_pieces


def _speed(plan: TrainPlan, sample: Sample) -> Speed:
    settings, model = plan.settings, load_model(plan.parts.settings)
    towers = [tower.to(device_here()).train() for tower in (model.entity_tower, model.mention_tower)]
    asked = settings.objective.chunk_tokens
    chunk = choose_chunk_tokens(towers) if asked == "auto" else asked
    pieces = settings.optimiser.micro_batch * _pieces_per_mention(settings, sample)
    objective = settings.objective.model_copy(update={"chunk_tokens": chunk_to_measure(pieces, chunk)})
    plain = objective.model_copy(update={"adversarial": AdversarialSettings()})
    modules = Objective(model, objective), Objective(model, plain)
    return measure(*modules, sample.retriever_batch(), settings.precision)


def planned_step(settings: TrainSettings | RankTrainSettings, parts: Parts, side: Side) -> dict[str, Any]:
    """What a step is simulated with, whatever it trains."""
    config = load_config(parts.tower_folder(side))
    if parts.settings.layers is not None and not parts.is_saved:
        config.num_hidden_layers = parts.settings.layers
    objective = settings.objective
    if objective.chunk_tokens == "auto":
        objective = objective.model_copy(update={"chunk_tokens": CPU_CHUNK_TOKENS})
    return {
        "config": config,
        "objective": objective,
        "micro_batch": min(settings.optimiser.micro_batch, PLANNED_MENTIONS),
        "half_precision": settings.precision in ("fp16", "bf16"),
    }


def _memory(plan: TrainPlan) -> StepMemory:
    text = plan.parts.settings.text
    return step_memory(
        **planned_step(plan.settings, plan.parts, "entity"),
        mention_length=text.mention_length,
        entity_length=text.entity_length,
        num_negatives=plan.settings.negatives.num_negatives,
    )
