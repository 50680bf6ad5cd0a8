"""What a training will take, before it starts."""

from __future__ import annotations

from pel_ray.chunks import CPU_CHUNK_TOKENS
from pel_ray.console import human_bytes
from pel_ray.steps.train_plan import TrainPlan, TrainSettings
from pel_ray.training_memory import StepMemory, step_memory

PLANNED_MENTIONS = 4
"""Of a micro-batch; activations depend on the chunk, so more of them would only take longer to simulate."""


def estimate(settings: TrainSettings) -> list[tuple[str, str]]:
    plan = TrainPlan(settings)
    mentions = plan.mentions()
    optimiser, negatives, memory = settings.optimiser, settings.negatives, _memory(plan)
    num_steps = -(-len(mentions) // optimiser.batch_size)
    num_texts = optimiser.batch_size * (negatives.num_negatives + 1)
    left_out = f"{mentions.num_nil:,} NIL and {mentions.num_outside:,} with golds outside it are left out"
    mining = f"{negatives.num_hard} hard negatives a mention, refresh {negatives.refresh}"
    return [
        ("mentions", f"{len(mentions):,} with a gold in the KB; {left_out}"),
        (
            "steps",
            f"{num_steps:,} an epoch, {num_steps * optimiser.epochs:,} in all, of at most {num_texts:,} entities",
        ),
        ("mining", mining if negatives.num_hard else "none: random negatives"),
        ("memory of a worker", f"{human_bytes(memory.total)}, simulated for texts as long as they may be"),
        *((f"  {name}", human_bytes(size)) for name, size in memory.parts.items()),
        ("already done", "yes" if plan.done else "no"),
    ]


def _memory(plan: TrainPlan) -> StepMemory:
    from transformers import AutoConfig

    settings, parts = plan.settings, plan.parts
    config = AutoConfig.from_pretrained(parts.tower_folder("entity"))
    if parts.settings.layers is not None and not parts.is_saved:
        config.num_hidden_layers = parts.settings.layers
    objective = settings.objective
    if objective.chunk_tokens == "auto":
        objective = objective.model_copy(update={"chunk_tokens": CPU_CHUNK_TOKENS})
    return step_memory(
        config,
        objective,
        mention_length=parts.settings.text.mention_length,
        entity_length=parts.settings.text.entity_length,
        micro_batch=min(settings.optimiser.micro_batch, PLANNED_MENTIONS),
        num_negatives=settings.negatives.num_negatives,
        half_precision=settings.precision in ("fp16", "bf16"),
    )
