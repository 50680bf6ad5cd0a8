"""Settings: strict, from a file, --set and flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import Field

from pel_ray.errors import SettingsError
from pel_ray.spec import Settings, resolve
from pel_ray.steps.encode_kb import EncodeSettings
from pel_ray.steps.quickstart import QuickstartSettings
from tests.conftest import RunCommand
from tests.samples import OBO


class Inner(Settings):
    rate: float = Field(default=0.5, gt=0)
    """Steps."""
    kind: Literal["a", "b"] = "a"
    """Which."""


class Outer(Settings):
    name: str
    """Whose."""
    inner: Inner = Inner()
    """How."""
    words: list[str] = []
    """What."""
    size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """How much."""


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_flags_win_over_set_and_set_over_the_file(tmp_path: Path) -> None:
    spec = write(tmp_path / "job.yaml", "name: file\ninner: {rate: 1, kind: b}\nwords: [x]\n")
    settings = resolve(Outer, spec=spec, sets=["inner.rate=2e-5", "name=set", "words=[y, z]"], flags={"name": "flag"})
    assert settings == Outer(name="flag", inner=Inner(rate=2e-5, kind="b"), words=["y", "z"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nwrods: [x]\n", "unknown key 'wrods'; did you mean 'words'?"),
        ("name: a\ninner: {rat: 1}\n", "unknown key 'inner.rat'; did you mean 'rate'?"),
        ("name: a\nzzz: 1\n", "known keys are name, inner, words, size"),
        ("name: a\nsize: 0\n", "yaml: size is 0: input should be greater than or equal to 1, or 'auto'"),
        ("name: a\nwords: [{}]\n", "yaml: words.0 is {}: input should be a valid string"),
        ("words: []\n", "name is missing"),
        ("name: a\ninner: {rate: 0}\n", "inner.rate is 0: input should be greater than 0"),
        ("name: a\ninner: {kind: c}\n", "inner.kind is 'c'"),
        ("name: [1\n", "job.yaml:2: is not YAML"),
        ("", "is empty"),
        ("- a\n", "is a list, expected"),
        ("1: a\n", "expected `key: value`"),
        ("name: 2024-13-45\n", "is not YAML"),
        ("{[a]: b}\n", "is not YAML"),
        ("name: " + "[" * 3000, "is not YAML"),
        ("name: a\nname: b\n", "job.yaml:2: is not YAML: the key 'name' occurs twice"),
    ],
)
def test_a_wrong_spec_says_where_and_what(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as error:
        resolve(Outer, spec=write(tmp_path / "job.yaml", text))
    assert expected in str(error.value) and "job.yaml" in str(error.value)


@pytest.mark.parametrize("assignment", ["name", "=x", "name.deeper=1", "words=[x", "name=2024-13-45"])
def test_a_wrong_set_is_named(assignment: str) -> None:
    with pytest.raises(SettingsError, match="--set"):
        resolve(Outer, sets=["name=x", assignment])


def test_a_spec_runs_a_command_and_its_plan_is_a_spec(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "toy.obo").write_text(OBO)
    plan = pel_ray("import", "obo", "toy.obo", "--out", "set", "--scopes", "exact,related", "--plan").out
    assert not Path("set").exists()
    assert yaml.safe_load(plan)["scopes"] == ["exact", "related"]
    spec = write(tmp_path / "job.yaml", plan)
    assert pel_ray("import", "obo", "--spec", spec).code == 0
    assert "already done" in pel_ray("import", "obo", "toy.obo", "--out", "set", "--scopes", "exact,related").out
    bad = write(tmp_path / "bad.yaml", plan.replace("scopes", "scope"))
    assert "did you mean 'scopes'?" in pel_ray("import", "obo", "--spec", bad).error


def test_the_encode_job_is_a_spec_of_its_command() -> None:
    spec = Path(__file__).parent.parent / "jobs" / "encode-kb.yaml"
    assert resolve(EncodeSettings, spec=str(spec)).model.layers == 3


def test_the_quickstart_job_says_what_the_defaults_are() -> None:
    spec = Path(__file__).parent.parent / "jobs" / "quickstart.yaml"
    assert resolve(QuickstartSettings, spec=str(spec)) == QuickstartSettings()
