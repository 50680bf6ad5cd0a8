"""run: a pipeline does its steps in order, skips what is done, and a failure says how to go on."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from pel_ray.artifacts import read_manifest
from pel_ray.cli import cli
from pel_ray.cli.jobs import command_of
from pel_ray.cli.options import SettingsCommand
from pel_ray.spec import resolve
from pel_ray.storage import locate
from tests.conftest import RunCommand
from tests.models import write_encoder
from tests.samples import OBO, write_jsonl
from tests.test_evaluate import NUM_ENTITIES, NUM_MENTIONS, entity, mention

JOBS = Path(__file__).parent.parent / "jobs"
PIPELINE = """\
out: made
steps:
  - name: data
    run: import obo
    with: {file: toy.obo, out: "{out}/data", mentions: synonyms, validation: 0, test: 0}
  - name: vectors
    run: encode-kb
    spec: encode.yaml
    with: {kb: "{out}/data", out: "{out}/vectors", model: {layers: 1}}
  - name: index
    run: index
    with: {vectors: "{out}/vectors", out: "{out}/index", kind: flat}
"""


@pytest.fixture
def files(tmp_path: Path) -> None:
    (tmp_path / "toy.obo").write_text(OBO)
    write_encoder(tmp_path / "tiny")
    (tmp_path / "encode.yaml").write_text("kb: none\nout: none\nmodel: {encoder: tiny, layers: 2}\n")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)


def test_steps_run_in_order_and_a_rerun_does_nothing(files: None, pel_ray: RunCommand, ray_here: None) -> None:
    first = pel_ray("run", "pipeline.yaml")
    assert first.code == 0, first.err
    assert first.out.index("[1/3] data") < first.out.index("[2/3] vectors") < first.out.index("[3/3] index")
    made = read_manifest(locate("made/vectors"), "vectors")
    # The pipeline's word wins over that of the step's own spec.
    assert made.request.settings["model"]["layers"] == 1
    assert pel_ray("run", "pipeline.yaml").out.count("already done") == first.out.count("done in")


def test_a_failed_step_names_itself_and_the_command_to_go_on(
    files: None, tmp_path: Path, pel_ray: RunCommand, ray_here: None
) -> None:
    (tmp_path / "toy.obo").unlink()
    error = pel_ray("run", "pipeline.yaml", "--out", "else where", "--set", "vectors.store=fp32").error
    assert "step data: " in error
    assert error.endswith("go on with: pel-ray run pipeline.yaml --out 'else where' --set vectors.store=fp32")


def test_a_gpu_that_is_not_there_is_missed_before_the_first_step_and_cpu_does_without(
    files: None, pel_ray: RunCommand, ray_here: None
) -> None:
    asked = ["run", "pipeline.yaml", "--set", "vectors.resources.gpus=1"]
    error = pel_ray(*asked).error
    assert error.startswith("step vectors: resources.gpus is 1, but there is no GPU here. Pass --cpu")
    assert not Path("made").exists()
    assert pel_ray(*asked, "--cpu").code == 0
    assert "step index: " in (again := pel_ray(*asked, "--cpu", "--set", "index.vectors=none").error)
    assert again.endswith("--set index.vectors=none --cpu")


def test_plan_shows_every_setting_and_starts_nothing(files: None, tmp_path: Path, pel_ray: RunCommand) -> None:
    shown = yaml.safe_load(pel_ray("run", "pipeline.yaml", "--out", "x", "--set", "vectors.store=fp32", "--plan").out)
    assert [step["run"] for step in shown] == ["import obo", "encode-kb", "index"]
    assert shown[1]["with"]["store"] == "fp32" and shown[1]["with"]["out"] == "x/vectors"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("run: index", "run: indx", "step index runs 'indx', which is no command that a pipeline can run"),
        ("run: index", "run: import", "step index runs 'import'"),
        ("kind: flat", "kidn: flat", "step index: unknown key 'kidn'; did you mean 'kind'?"),
        ("name: index", "name: data", "two steps are called 'data'"),
        ("name: index", "nmae: index", "did you mean 'name'"),
        ("steps:", "stps:", "did you mean 'steps'"),
        (
            "name: index",
            "name: '{otu}'",
            "step {otu}: name has {otu}, which stands for nothing here; did you mean {out}?",
        ),
        (
            "run: index",
            "run: '{command}'",
            "step index: run has {command}, which stands for nothing here; known names are",
        ),
        ("encode.yaml", "'{otu}.yaml'", "step vectors: spec has {otu}"),
        ("{out}/index", "{otu}/index", "pipeline.yaml: step index: with.out has {otu}"),
        ("layers: 1", "encoder: ['{otu}']", "step vectors: with.model.encoder has {otu}"),
        ('{vectors: "{out}/vectors", out: "{out}/index", kind: flat}', "&a {kb: *a}", "a setting contains itself"),
        ("out: made", "out: made\nvalues: {out: other}", "values.out is not a value: {out} stands for"),
        (
            "name: index",
            "name: again\n    run: encode-kb\n    with: {kb: other, out: '{out}/./vectors'}\n  - name: index",
            "steps vectors and again have the same out, made/./vectors. Give each a folder of its own",
        ),
        (
            "name: index",
            "for: {x: ['']}\n    name: '{x}'",
            "step {x}: name is '': string should have at least 1 character",
        ),
    ],
)
def test_a_bad_pipeline_is_refused_before_anything_starts(
    files: None, tmp_path: Path, pel_ray: RunCommand, old: str, new: str, said: str
) -> None:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE.replace(old, new))
    assert said in pel_ray("run", "pipeline.yaml").error
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "vector.store=fp32"), "'vector' is not a step of this pipeline, which has data, vectors, index"),
        (("--only", "vec"), "'vec' is not a step of this pipeline"),
        (("--out", ""), "out is '': string should have at least 1 character"),
        (("--set", "seed=3"), "'seed' is not a value of this pipeline, which has none"),
        (
            ("--set", "vectors.out=x/{out}"),
            "vectors.out has {out}, which stands for nothing here; known names are none",
        ),
    ],
)
def test_what_is_named_must_be_there(files: None, pel_ray: RunCommand, words: tuple[str, ...], said: str) -> None:
    assert said in pel_ray("run", "pipeline.yaml", *words).error


def test_a_template_keeps_its_own_names_in_braces(files: None, tmp_path: Path, pel_ray: RunCommand) -> None:
    own = "{title} [SEP] {types}"
    inner = f"model: {{text: {{template: '{own}'}}}}"
    (tmp_path / "pipeline.yaml").write_text(PIPELINE.replace("model: {layers: 1}", inner))
    plan = ["run", "pipeline.yaml", "--plan"]
    for words, expected in (([], own), (["--set", "vectors.model.text.template='{title}'"], "{title}")):
        shown = yaml.safe_load(pel_ray(*plan, *words).out)
        assert shown[1]["with"]["model"]["text"]["template"] == expected


TABLE = """\
out: made
values: {kb: toy/kb}
steps:
  - name: "{row}-{layers}"
    for: &rows {row: [a, b], layers: [1, 2]}
    run: encode-kb
    spec: "{row}.yaml"
    with: {kb: "{kb}", out: "{out}/{row}/{layers}", model: {layers: "{layers}"}}
  - name: "{row}-{layers}-index"
    for: *rows
    run: index
    with: {vectors: "{out}/{row}/{layers}", out: "{out}/{row}/{layers}/index"}
  - name: end
    run: index
    with: {vectors: "{out}/a/1", out: "{out}/last"}
"""


@pytest.fixture
def table(files: None, tmp_path: Path) -> None:
    (tmp_path / "table.yaml").write_text(TABLE)
    (tmp_path / "a.yaml").write_text("extends: encode.yaml\nstore: fp32\nmodel: {pooling: cls}\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nmodel: {similarity: dot}\n")


def test_a_step_is_done_for_each_row(table: None, pel_ray: RunCommand) -> None:
    shown = yaml.safe_load(pel_ray("run", "table.yaml", "--plan", "--set", "kb=mine", "--set", "b-?.store=fp16").out)
    names = "a-1 a-1-index a-2 a-2-index b-1 b-1-index b-2 b-2-index end".split()
    assert [step["name"] for step in shown] == names
    last = shown[6]["with"]
    assert last["kb"] == "mine" and last["out"] == "made/b/2"
    assert (last["model"]["encoder"], last["model"]["layers"]) == ("tiny", 2)
    assert (last["model"]["pooling"], last["model"]["similarity"]) == ("cls", "dot")
    assert last["store"] == "fp16" and shown[2]["with"]["store"] == "fp32"


def test_a_step_with_a_dot_in_its_name_is_set_by_name_and_by_pattern(
    table: None, tmp_path: Path, pel_ray: RunCommand
) -> None:
    (tmp_path / "table.yaml").write_text(TABLE.replace("{row}-{layers}", "{row}-0.{layers}"))
    sets = ["--set", "a-0.1.model.layers=6", "--set", "b-0.?.store=fp16"]
    shown = yaml.safe_load(pel_ray("run", "table.yaml", "--plan", *sets).out)
    found = {step["name"]: (step["with"]["model"]["layers"], step["with"]["store"]) for step in shown[0:-1:2]}
    assert found == {"a-0.1": (6, "fp32"), "a-0.2": (2, "fp32"), "b-0.1": (1, "fp16"), "b-0.2": (2, "fp16")}


def test_a_number_is_a_name_and_a_spec_too(table: None, tmp_path: Path, pel_ray: RunCommand) -> None:
    (tmp_path / "table.yaml").write_text(TABLE.replace('"{row}-{layers}"', '"{layers}"').replace("[a, b]", "[7]"))
    (tmp_path / "7.yaml").write_text("extends: encode.yaml\nstore: fp32\n")
    shown = yaml.safe_load(pel_ray("run", "table.yaml", "--plan", "--set", "2.store=fp16").out)
    assert [step["name"] for step in shown[:-1:2]] == ["1", "2"]
    assert [step["with"]["store"] for step in shown[:-1:2]] == ["fp32", "fp16"]
    assert [step["with"]["model"]["layers"] for step in shown[:-1:2]] == [1, 2]


def test_the_same_step_twice_is_no_mistake(table: None, tmp_path: Path, pel_ray: RunCommand) -> None:
    (tmp_path / "table.yaml").write_text(TABLE.replace("{out}/{row}/{layers}/index", "{out}/last"))
    assert "steps a-1-index and a-2-index have the same out" in pel_ray("run", "table.yaml", "--plan").error
    assert pel_ray("run", "table.yaml", "--plan", "--only", "a-1*", "--only", "end").code == 0


@pytest.mark.parametrize("values", ["kb: '{top}/kb', top: '{out}/x'", "top: '{out}/x', kb: '{top}/kb'"])
def test_a_value_may_be_made_of_others_before_and_after_it(
    table: None, tmp_path: Path, pel_ray: RunCommand, values: str
) -> None:
    (tmp_path / "table.yaml").write_text(TABLE.replace("kb: toy/kb", values))
    shown = yaml.safe_load(pel_ray("run", "table.yaml", "--plan", "--only", "a-1").out)
    assert shown[0]["with"]["kb"] == "made/x/kb"


def test_a_name_that_looks_like_a_pattern_is_a_name(table: None, tmp_path: Path, pel_ray: RunCommand) -> None:
    (tmp_path / "table.yaml").write_text(TABLE.replace("name: end", 'name: "[end]"'))
    shown = yaml.safe_load(pel_ray("run", "table.yaml", "--plan", "--only", "[end]", "--set", "[end].kind=flat").out)
    assert [(step["name"], step["with"]["kind"]) for step in shown] == [("[end]", "flat")]


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("a-1.reuse", "--set a-1.reuse: expected key=value"),
        ("kb", "--set kb: expected key=value"),
        ("kb=", "--set kb=: expected a text (quote it?), a number, true or false"),
        ("kb=[a, b]", "--set kb=[a, b]: expected a text (quote it?), a number, true or false"),
    ],
)
def test_an_assignment_gives_a_value(table: None, pel_ray: RunCommand, assignment: str, said: str) -> None:
    assert said in pel_ray("run", "table.yaml", "--plan", "--set", assignment).error


def test_only_some_steps(table: None, pel_ray: RunCommand) -> None:
    shown = yaml.safe_load(pel_ray("run", "table.yaml", "--plan", "--only", "b-1*", "--only", "end").out)
    assert [step["name"] for step in shown] == ["b-1", "b-1-index", "end"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: b.yaml", "which in the end extends"),
        ("extends: 3", "extends is 3, expected the name of a spec"),
        ("extends: encod.yaml", "no such file; did you mean encode.yaml?"),
    ],
)
def test_a_bad_extends_is_refused(table: None, tmp_path: Path, pel_ray: RunCommand, text: str, said: str) -> None:
    (tmp_path / "a.yaml").write_text(text + "\n")
    assert said in pel_ray("run", "table.yaml", "--plan").error


SPECS = [spec for spec in sorted(JOBS.rglob("*.yaml")) if spec.stem != "base"]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.relative_to(JOBS).with_suffix("")))
def test_every_job_says_its_command_and_resolves(
    spec: Path, pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(JOBS.parent)
    text = spec.read_text()
    # What a row of a table costs, and what one should see, is said by the table.
    for heading in (
        ("# Purpose ", "# Command ") if "extends:" in text else ("# Purpose ", "# Command ", "# Cost ", "# See ")
    ):
        assert heading in text
    if cost := re.search(r"^# Cost +(.+)", text, re.MULTILINE):
        assert re.search(r"\d|not run by us", cost[1]), cost[1]
    words = command_of([str(spec)])
    if words[0] == "run":
        assert pel_ray("run", spec, "--plan").code == 0
        return
    found: object = cli
    for word in words:
        if isinstance(found, click.Group):
            found = found.get_command(click.Context(cli), word)
    assert isinstance(found, SettingsCommand)
    resolve(found.model, spec=str(spec))


def test_the_pipeline_job_goes_from_files_to_a_report(
    tmp_path: Path, pel_ray: RunCommand, ray_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_encoder(tmp_path / "tiny")
    write_jsonl(tmp_path / "kb.jsonl", [entity(number) for number in range(NUM_ENTITIES)])
    write_jsonl(tmp_path / "mentions.jsonl", [mention(number) for number in range(NUM_MENTIONS)])
    monkeypatch.chdir(JOBS.parent)
    small = {
        "data.kb": f"[{tmp_path / 'kb.jsonl'}]",
        "data.mentions": f"[{tmp_path / 'mentions.jsonl'}]",
        "train.model.encoder": tmp_path / "tiny",
        "train.model.layers": 1,
        "train.optimiser.epochs": 1,
        "train.validation": "{}",
        "validation.tune_nil": "true",
    }
    sets = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    done = pel_ray("run", "jobs/pipeline.yaml", "--out", tmp_path / "out", *sets)
    assert done.code == 0, done.err
    page = (tmp_path / "out" / "report" / "report.html").read_text()
    assert "tf-idf" in page and "NIL" in page
    links = pel_ray("link", tmp_path / "out" / "index", tmp_path / "mentions.jsonl")
    assert len(links.out.splitlines()) == NUM_MENTIONS
