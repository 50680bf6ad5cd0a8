"""The baseline of sentence-transformers in jobs/paper/open: what it trains is the model that is then tested."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from pel_ray.encoder import ModelSettings, load_model, save_whole
from pel_ray.steps.import_jsonl import JsonlSettings, import_jsonl
from pel_ray.steps.train_plan import TrainPlan, TrainSettings
from tests.models import write_encoder
from tests.ranking_set import NUM_ENTITIES, NUM_MENTIONS, entity, mention
from tests.samples import write_jsonl
from tests.scripts import HOME, script_at


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_at("jobs/paper/open/mnrl.py")


def test_both_towers_learn_the_same_finite_weights(script: ModuleType, tmp_path: Path) -> None:
    files = {"kb": tmp_path / "kb.jsonl", "mentions": tmp_path / "mentions.jsonl"}
    write_jsonl(files["kb"], [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(files["mentions"], [mention(number) for number in range(NUM_MENTIONS)])
    import_jsonl(JsonlSettings(out=str(tmp_path / "set"), **{name: [str(file)] for name, file in files.items()}))
    model = {"encoder": str(write_encoder(tmp_path / "tiny")), "pooling": "mention"}
    given = {"data": str(tmp_path / "set"), "out": str(tmp_path / "run"), "model": model}
    plan = TrainPlan(TrainSettings.model_validate(given | {"optimiser": {"epochs": 2, "lr": 1e-3, "batch_size": 8}}))
    trained, untrained = load_model(plan.settings.model), load_model(ModelSettings.model_validate(model))
    script.train(trained, plan)
    pairs = zip(trained.entity_tower.parameters(), trained.mention_tower.parameters(), strict=True)
    assert all(torch.equal(one, other) and one.isfinite().all() for one, other in pairs)
    moved = [
        not torch.equal(one, other)
        for one, other in zip(trained.entity_tower.parameters(), untrained.entity_tower.parameters(), strict=True)
    ]
    assert sum(moved) > len(moved) / 2


def test_a_second_run_does_nothing(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model(ModelSettings(encoder=str(write_encoder(tmp_path / "tiny"))))
    save_whole(model, tmp_path / "out" / "model")
    # What comes after it, as mnrl.yaml makes it.
    (tmp_path / "out" / "vectors").mkdir()
    capsys.readouterr()
    script.main(["--data", str(tmp_path / "gone"), "--out", str(tmp_path / "out")])
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'model'}: already done, nothing to do\n"


def test_missing_data_is_one_line(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)
    with pytest.raises(SystemExit) as stop:
        script.main(["--data", str(tmp_path / "gone"), "--out", str(tmp_path / "out")])
    assert isinstance(stop.value.code, str) and stop.value.code.startswith("mnrl: error: ")
    assert "gone has no kb/" in stop.value.code and "\n" not in stop.value.code
    assert not (tmp_path / "out").exists()
