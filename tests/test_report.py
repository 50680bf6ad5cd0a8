"""The page of runs and evaluations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pel_ray.artifacts import Input, Request, building
from pel_ray.cli.curves import command as curves
from pel_ray.cli.report import command
from pel_ray.errors import ArtifactError
from pel_ray.plots import plot_run
from pel_ray.report import gather
from pel_ray.report_page import page
from pel_ray.steps.report import write_report
from pel_ray.storage import locate

KS = (1, 2, 4, 8, 16, 32, 64)
HOSTILE = "<script>alert('$x_1$')</script>"


def row(group: str, name: str, mentions: int, first: float) -> dict[str, Any]:
    values = {f"recall@{k}": first + (0.95 - first) * number / 6 for number, k in enumerate(KS)}
    values |= {"MRR": first + 0.051, "normalised@1": first + 0.02}
    return {"group": group, "name": name, "mentions": mentions} | {
        metric: {"value": value, "low": value - 0.011, "high": value + 0.012} for metric, value in values.items()
    }


def rows(first: float) -> list[dict[str, Any]]:
    types = [row("type", f"Type number {number}", 100 - number, first) for number in range(20)]
    return [
        row("all", "micro", 1862, first),
        row("all", "macro over worlds", 1862, first - 0.03),
        row("seen", "unseen in training", 1111, first - 0.1),
        row("world", "american_football", 333, first + 0.001),
        *types,
    ]


def confusion(title: str) -> dict[str, Any]:
    return {
        "times": 7,
        "mention": "heart attack",
        "left": "died of a ",
        "right": " at night",
        "rank": 3,
        "gold": {"id": "HP:0001658", "title": title, "description": "Necrosis. " * 60, "score": 0.7123},
        "predicted": {"id": "HP:0001695", "title": "Cardiac arrest", "description": None, "score": 0.7834},
    }


def evaluation(first: float = 0.8091, title: str = "Myocardial infarction", **other: Any) -> dict[str, Any]:
    threshold = {"threshold": 0.617, "split": "validation", "precision": 0.701, "recall": 0.602, "f1": 0.6477}
    return {
        "data": "data/hpo",
        "split": "test",
        "model": "runs/pb/model",
        "vectors": "runs/pb/vectors",
        "index": None,
        "policy": {"pool": "19,034 entities", "golds": "any", "gold not in the KB": "wrong", "search": "exact"},
        "mentions": 1962,
        "NIL mentions": 100,
        "gold not in the KB": 3,
        "systems": {"retriever": rows(first), "tf-idf": rows(0.6972)},
        "nil": {
            "mentions": 1962,
            "NIL mentions": 100,
            "auPR": {"value": 0.523, "low": 0.49, "high": 0.55},
            "threshold": threshold | {"recall@1": 0.777, "recall@64": 0.9},
            "curve": {"recall": [0, 0.5, 1], "precision": [1, 0.6, 0.05], "threshold": [0.1, 0.6, 1]},
        },
        "reliability": [{"from": 0.5, "to": 0.6, "score": 0.553, "correct": 0.41, "mentions": 213}],
        "confusions": [confusion(title)],
    } | other


def write_evaluation(folder: Path, content: Mapping[str, Any] | str, model: str = "some model") -> Path:
    """As evaluate leaves it; a text is written as it is."""
    inputs = {role: Input(role, role) for role in ("kb", "mentions", "vectors")} | {"model": Input("model", model)}
    request = Request(kind="evaluation", inputs=inputs, settings={"folder": folder.name})
    with building(locate(folder), request) as work:
        with work.writing("evaluation", ".json") as stream:
            stream.write((content if isinstance(content, str) else json.dumps(content)).encode())
        work.counts |= {"rows": 1962, "seconds": {"searching": 12.5}}
    return folder


def write_run(folder: Path, lr: float = 1e-4, model: Path | None = None, kind: str = "run") -> Path:
    """As train or rank train leaves it, but for most of its state; `model` is copied."""
    inputs = {"kb": Input("data/hpo/kb", "kb"), "mention model": Input("encoder", "the start")}
    if kind == "ranker":
        inputs = {"kb": Input("data/hpo/kb", "kb"), "vectors": Input("runs/pb/vectors", "vectors")}
    metric = "accuracy" if kind == "ranker" else "recall@1"
    request = Request(kind=kind, inputs=inputs, settings={"optimiser": {"lr": lr, "epochs": 2}, "seed": 13})
    with building(locate(folder), request) as work:
        write_metrics(folder / "metrics.jsonl", metric)
        plot_run(locate(folder))
        for file in sorted(model.rglob("*")) if model else ():
            if file.is_file():
                copy = folder / "model" / file.relative_to(model or folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
        for name in ("metrics.jsonl", "training.png"):
            work.count(name)
        validation = {metric: 0.8292, "recall@64": 0.941}
        work.counts |= {"rows": 13990, "steps": 876, "best epoch": 2, "training seconds": 188.6}
        work.counts |= {"validation before training": {metric: 0.5472}, "validation of the best epoch": validation}
        write_negatives(folder / f"state-{work.tag}" / "negatives-000")
    return folder


def write_metrics(file: Path, metric: str) -> None:
    lines: list[dict[str, Any]] = [{"step": 0, "epoch": 0, "validation": {metric: 0.5472}}]
    lines += [{"step": 1, "epoch": 0.5, "loss": 2.0, "lr": 1e-4, "gradient_norm": 3.0}]
    lines += [{"step": 2, "epoch": 1, "validation": {metric: 0.8292}}]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def write_negatives(folder: Path) -> None:
    example = {"mention": "a [[trisomy 21]], b", "gold": "Down syndrome", "gold score": None, "gold rank": 2}
    with building(locate(folder), Request(kind="negatives", inputs={}, settings={})) as work:
        with work.writing("report", ".json") as stream:
            negatives = [{"title": "Trisomy 18", "score": 0.0287}]
            stream.write(json.dumps({"examples": [example | {"negatives": negatives}]}).encode())
        dropped = {"shares a name with the gold": {"hits": 1740, "of mentions": 1632}}
        work.counts |= {"rows": 13990, "dropped": dropped, "gold beside its negatives": {"gold at rank 1": "81.1%"}}


class Page(HTMLParser):
    """The text of a page, its references and its styles."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.styles: list[str] = []
        self.feed(content)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"):
                self.references.append(value or "")
            if name == "style":
                self.styles.append(value or "")

    def handle_data(self, data: str) -> None:
        (self.styles if self.lasttag == "style" and "{" in data else self.words).append(data)


def read_page(folders: list[Path], out: Path) -> Page:
    write_report([str(folder) for folder in folders], str(out))
    return Page((out / "report.html").read_text())


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    made = [
        write_run(tmp_path / "a"),
        write_run(tmp_path / "b", lr=2e-5),
        write_evaluation(tmp_path / "c", evaluation()),
    ]
    shown = read_page(made, tmp_path / "out")
    assert sum(reference.startswith("data:image/png;base64,") for reference in shown.references) == 6
    assert all(reference.startswith(("data:", "#")) for reference in shown.references)
    assert not shown.tags & {"script", "iframe", "object", "embed", "base", "form"}
    styles = " ".join(shown.styles)
    assert styles and not re.search(r"url\(|@import|image-set", styles)


def test_texts_from_outside_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    content = evaluation(title=HOSTILE, data=f"data/{HOSTILE}")
    content["systems"]["retriever"].append(row("type", HOSTILE, 5, 0.5))
    content["systems"][HOSTILE] = rows(0.4)
    shown = read_page([write_evaluation(tmp_path / "a", content)], tmp_path / "out")
    assert "script" not in shown.tags and shown.text.count(HOSTILE) >= 4


def test_figures_of_an_evaluation_are_on_the_page(tmp_path: Path) -> None:
    shown = read_page([write_evaluation(tmp_path / "test", evaluation())], tmp_path / "out").text
    for figure in (
        "80.9",
        "79.8–82.1",
        "69.7",
        "95.0",
        "0.860",
        "82.9",
        "70.9",
        "77.9",
        "81.0",
        "52.3",
        "0.617",
        "64.8",
    ):
        assert figure in shown, figure
    for text in ("+11.2", "american_football", "unseen in training", "heart attack", "Cardiac arrest", "0.712", "7×"):
        assert text in shown, text
    assert "19,034 entities" in shown and "1,962 mentions" in shown and "12.5 s" in shown


def test_what_a_ranker_changed_is_on_the_page(tmp_path: Path) -> None:
    one = confusion("Myocardial infarction")
    change = {name: one[name] for name in ("mention", "left", "right", "gold")}
    change |= {"before": one["predicted"], "after": one["gold"]}
    counts = {"wrong->right": 1234, "right->wrong": 5, "kept": 400}
    found = evaluation(changes={"counts": counts, "examples": {"wrong->right": [change], "right->wrong": []}})
    page = write_report([str(write_evaluation(tmp_path / "test", found))], str(tmp_path / "out"))
    text = page.read_bytes().decode()
    assert "wrong to right" in text and "1,234" in text and "1 of wrong to right" in text
    assert "of right to wrong" not in text


def test_long_descriptions_are_cut(tmp_path: Path) -> None:
    shown = read_page([write_evaluation(tmp_path / "test", evaluation())], tmp_path / "out").text
    assert 20 < shown.count("Necrosis.") < 40


def test_a_run_without_an_evaluation_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = read_page([write_run(tmp_path / "pb")], tmp_path / "out").text
    assert "pel-ray evaluate data/hpo --vectors pb --out pb/test" in shown
    for figure in ("82.9", "before 54.7", "81.1%", "1,740 hits of 1,632 mentions", "trisomy 21", "Trisomy 18"):
        assert figure in shown, figure


def test_a_ranker_is_shown_beside_its_retriever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "pb")
    ranker = write_run(tmp_path / "runs" / "ranker", kind="ranker")
    write_evaluation(ranker / "validation", evaluation())
    shown = read_page([tmp_path / "runs"], tmp_path / "out").text
    asked = "pel-ray rank evaluate data/hpo --ranker runs/ranker --vectors runs/pb/vectors --out runs/ranker/test"
    assert asked in shown and "1,962 mentions" in shown
    table = shown.split("best epoch")[1].split("Per cent on the validation mentions")[0]
    assert table.split()[:3] == ["recall@1", "recall@64", "accuracy"] and table.count("before 54.7") == 2
    assert (tmp_path / "out" / "compared.png").stat().st_size > 0
    result = CliRunner().invoke(curves, ["runs/pb", "runs/ranker", "--out", "curves.png"])
    assert result.exit_code == 0 and "2 runs" in result.output and Path("curves.png").is_file()


def test_runs_are_compared_with_the_settings_that_differ(tmp_path: Path) -> None:
    for name, lr in (("fast", 1e-4), ("slow", 2e-5)):
        write_run(tmp_path / "runs" / name, lr=lr)
    shown = read_page([tmp_path / "runs"], tmp_path / "out").text
    differing = shown.split("Settings that differ")[1].split("All settings")[0]
    assert "optimiser.lr 0.0001 2e-05" in differing and "seed" not in differing
    assert (tmp_path / "out" / "compared.png").stat().st_size > 0


def test_an_evaluation_finds_the_run_that_made_its_model(tmp_path: Path) -> None:
    from pel_ray.encoder import ModelSettings, load_model, load_parts, save_whole
    from tests.models import write_encoder

    encoder = write_encoder(tmp_path / "encoder")
    save_whole(load_model(ModelSettings(encoder=str(encoder))), tmp_path / "saved")
    digest = load_parts(ModelSettings(encoder=str(tmp_path / "saved"))).digest("mention")
    run = write_run(tmp_path / "runs" / "pb", model=tmp_path / "saved")
    write_evaluation(run / "test", evaluation(), model=digest)
    write_evaluation(tmp_path / "runs" / "before", evaluation(0.552), model="the start")
    write_evaluation(tmp_path / "runs" / "other", evaluation(0.7))
    (comparison,) = gather([str(tmp_path / "runs")]).comparisons
    assert {found.folder.name: found.run and found.run.name for found in comparison.evaluations} == {
        "before": None,
        "other": None,
        "test": "pb",
    }
    shown = read_page([tmp_path / "runs"], tmp_path / "out").text
    assert "+25.7 points against untrained (55.2)" in shown and "No evaluation of" not in shown


def test_only_answers_to_the_same_question_share_a_table(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "a", evaluation(0.81))
    write_evaluation(tmp_path / "b", evaluation(0.75))
    write_evaluation(tmp_path / "c", evaluation(0.7, split="validation"))
    report = gather([str(tmp_path)])
    names = [[system.name.rsplit("/", 1)[-1] for system in comparison.systems] for comparison in report.comparisons]
    assert names == [["a", "b", "tf-idf"], ["c", "tf-idf"]]


def test_every_folder_is_shown_once_however_it_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "pb")
    found = write_evaluation(run / "test", evaluation())
    report = gather([str(found), str(run), str(tmp_path / "runs")])
    assert [len(report.runs), len(report.evaluations)] == [1, 1]


def test_a_group_that_a_baseline_does_better_on_is_named(tmp_path: Path) -> None:
    content = evaluation(0.9)
    content["systems"]["tf-idf"].append(row("type", "Rare", 40, 0.8))
    content["systems"]["retriever"].append(row("type", "Rare", 40, 0.5))
    shown = read_page([write_evaluation(tmp_path / "a", content)], tmp_path / "out").text
    weak = shown.split("A baseline has the clearly higher recall@1 on")[1].split("All mentions")[0]
    assert "Rare (tf-idf 80.0" in weak and "unseen in training" not in weak


def test_what_could_not_be_measured_is_a_dash(tmp_path: Path) -> None:
    content = evaluation(nil=None, reliability=[], confusions=[])
    for figures in content["systems"]["retriever"]:
        figures["normalised@1"] = {"value": None, "low": None, "high": None}
    content["systems"].pop("tf-idf")
    assert "–" in read_page([write_evaluation(tmp_path / "a", content)], tmp_path / "out").text


def test_a_folder_with_nothing_to_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no finished run or evaluation"):
        write_report([str(tmp_path)], str(tmp_path / "out"))
    with pytest.raises(ArtifactError, match="does not exist"):
        write_report([str(tmp_path / "nowhere")], str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"data": 1}', json.dumps(evaluation(systems={}))])
def test_a_damaged_evaluation_is_named(content: str, tmp_path: Path) -> None:
    write_evaluation(tmp_path / "broken", content)
    with pytest.raises(ArtifactError, match="broken.* damaged"):
        write_report([str(tmp_path)], str(tmp_path / "out"))


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    made = write_evaluation(tmp_path / "test", evaluation())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    for _ in range(2):
        result = CliRunner().invoke(command, [str(made), "--out", str(tmp_path / "out")])
        assert result.exit_code == 0 and "report.html" in result.output
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["mine.txt", "nil.png", "recall.png", "reliability.png", "report.html"]


def test_a_page_can_be_made_without_its_figures(tmp_path: Path) -> None:
    report = gather([str(write_evaluation(tmp_path / "test", evaluation()))])
    assert "img" not in Page(page(report, {})).tags
