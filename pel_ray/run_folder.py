"""A finished training run as a report needs it: what it mined, what its parts took, which models it made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pel_ray.artifacts import MANIFEST, Manifest, read_manifest
from pel_ray.errors import ArtifactError
from pel_ray.evaluation_file import read_json
from pel_ray.storage import Location

RUN_KINDS = ("run", "ranker")
"""What training leaves: a retriever's run, or a ranker's."""
_PHASES = {
    "negatives": "mining",
    "candidates": "finding candidates",
    "teacher": "scoring candidates",
    "validation": "validation",
}


@dataclass(frozen=True, kw_only=True)
class Round:
    """Negatives that were mined before an epoch."""

    epoch: int
    manifest: Manifest
    examples: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run, by the shortest name that tells it from the others."""

    name: str
    colour: str
    folder: Location
    manifest: Manifest
    rounds: Sequence[Round]
    phases: Mapping[str, float]
    """Seconds by what they were spent on."""

    @property
    def is_ranker(self) -> bool:
        return self.manifest.request.kind == "ranker"

    @property
    def made_model(self) -> str:
        """The digest of its model, which evaluations of it name."""
        return self._digest(self.folder / "model")

    @property
    def first_models(self) -> set[str]:
        """Digests of the model it began with: as it was given, and as the run saved it."""
        start = self.manifest.request.inputs.get("encoder" if self.is_ranker else "mention model")
        tag = self.manifest.request.fingerprint[:8]
        saved = self._digest(_state(self.folder, self.manifest) / f"model-000-{tag}")
        return {digest for digest in (start.digest if start else "", saved) if digest}

    def _digest(self, model: Location) -> str:
        """Nothing where the folder has been taken away."""
        if not model.is_folder():
            return ""
        # These load torch, which a report of runs alone does not need.
        if self.is_ranker:
            from pel_ray.ranker import open_ranker

            return open_ranker(model.uri).digest
        from pel_ray.encoder import ModelSettings, load_parts

        return load_parts(ModelSettings(encoder=model.uri)).digest("mention")


def run_manifest(folder: Location) -> Manifest:
    """Of a finished run, whatever it has trained."""
    manifest = read_manifest(folder)
    if manifest.request.kind not in RUN_KINDS:
        raise ArtifactError(f"{folder} holds {manifest.request.kind}, expected {' or '.join(RUN_KINDS)}")
    return manifest


def read_run(folder: Location, name: str, colour: str) -> Run:
    manifest = run_manifest(folder)
    state = _state(folder, manifest)
    return Run(
        name=name,
        colour=colour,
        folder=folder,
        manifest=manifest,
        rounds=list(_rounds(state)),
        phases=_phases(manifest, state),
    )


def _state(folder: Location, manifest: Manifest) -> Location:
    return folder / f"state-{manifest.request.fingerprint[:8]}"


def _rounds(state: Location) -> Iterator[Round]:
    for name in state.names():
        if re.fullmatch(r"negatives-\d+", name) and (state / name / MANIFEST).is_file():
            manifest = read_manifest(state / name, "negatives")
            examples = read_json(state / name, manifest, "report").get("examples", [])
            yield Round(epoch=int(name.rsplit("-", 1)[1]), manifest=manifest, examples=examples)


def _phases(manifest: Manifest, state: Location) -> dict[str, float]:
    """A state folder that was deleted to save space leaves only the training itself."""
    counts = manifest.counts
    phases = {"training": float(counts.get("training seconds", 0))}
    if encoding := counts.get("encoding seconds, since the last start"):
        phases["encoding the KB"] = float(encoding)
    for name in state.names():
        phase = _PHASES.get(name.rsplit("-", 1)[0])
        if phase and (state / name / MANIFEST).is_file():
            phases[phase] = phases.get(phase, 0) + read_manifest(state / name).seconds
    return phases
