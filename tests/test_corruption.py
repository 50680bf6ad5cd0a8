"""Damaged files: a clean error, or read as what they now say; never a traceback, never a silent loss.

That nothing is lost in silence is checked by the import itself, which fails as a bug when the rows it wrote are not
the rows it counted as read and not dropped, and by comparing with the rows of the whole file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pel_ray.errors import PelRayError
from pel_ray.steps.import_jsonl import BlinkSettings, JsonlSettings, import_blink, import_jsonl
from pel_ray.steps.import_obo import OboSettings, import_obo
from pel_ray.steps.import_pubtator import MedMentionsSettings, PubtatorSettings, import_medmentions, import_pubtator
from pel_ray.steps.import_umls import UmlsSettings, import_umls
from pel_ray.steps.import_zeshel import ZeshelSettings, import_zeshel
from pel_ray.steps.importing import Outcome
from tests.reading import rows_of
from tests.samples import (
    BLINK_ENTITIES,
    BLINK_MENTIONS,
    OBO,
    PUBTATOR,
    write_jsonl,
    write_jsonl_set,
    write_umls,
    write_zeshel,
)

Run = Callable[[Path, str], list[Outcome]]


def pubtator(folder: Path, on_error: str) -> list[Outcome]:
    return import_pubtator(
        PubtatorSettings.model_validate(
            {"files": [str(folder / "corpus.txt")], "out": str(folder / "out"), "on_error": on_error}
        )
    )


def medmentions(folder: Path, on_error: str) -> list[Outcome]:
    given = {"files": [str(folder / "corpus.txt")], "out": str(folder / "out"), "on_error": on_error}
    return import_medmentions(MedMentionsSettings.model_validate(given))


def obo(folder: Path, on_error: str) -> list[Outcome]:
    given = {"file": str(folder / "toy.obo"), "out": str(folder / "out"), "on_error": on_error, "mentions": "synonyms"}
    return import_obo(OboSettings.model_validate(given))


def umls(folder: Path, on_error: str) -> list[Outcome]:
    return import_umls(
        UmlsSettings.model_validate({"folder": str(folder), "out": str(folder / "out"), "on_error": on_error})
    )


def zeshel(folder: Path, on_error: str) -> list[Outcome]:
    return import_zeshel(
        ZeshelSettings.model_validate({"folder": str(folder), "out": str(folder / "out"), "on_error": on_error})
    )


def jsonl(folder: Path, on_error: str) -> list[Outcome]:
    given = {"kb": [str(folder / "kb.jsonl")], "documents": [str(folder / "docs.jsonl.gz")]}
    given["mentions"] = [str(folder / "mentions.jsonl")]
    return import_jsonl(JsonlSettings.model_validate(given | {"out": str(folder / "out"), "on_error": on_error}))


def blink(folder: Path, on_error: str) -> list[Outcome]:
    given = {"kb": [str(folder / "entity.jsonl")], "mentions": [f"train={folder / 'train.jsonl'}"]}
    return import_blink(BlinkSettings.model_validate(given | {"out": str(folder / "out"), "on_error": on_error}))


FORMATS: dict[str, tuple[Run, list[str]]] = {
    "pubtator": (pubtator, ["corpus.txt"]),
    "medmentions": (medmentions, ["corpus.txt", "corpus_pubtator_pmids_trng.txt"]),
    "obo": (obo, ["toy.obo"]),
    "umls": (umls, ["MRCONSO.RRF", "MRSTY.RRF", "MRDEF.RRF"]),
    "zeshel": (zeshel, ["documents/castles.json", "mentions/train.json"]),
    "jsonl": (jsonl, ["kb.jsonl", "docs.jsonl.gz", "mentions.jsonl"]),
    "blink": (blink, ["entity.jsonl", "train.jsonl"]),
}


def write(name: str, folder: Path) -> None:
    if name in ("pubtator", "medmentions"):
        (folder / "corpus.txt").write_text(PUBTATOR)
        for split, document_id in (("trng", "101"), ("dev", "102"), ("test", "103")):
            (folder / f"corpus_pubtator_pmids_{split}.txt").write_text(f"{document_id}\n")
    elif name == "obo":
        (folder / "toy.obo").write_text(OBO)
    elif name == "umls":
        write_umls(folder)
    elif name == "zeshel":
        write_zeshel(folder)
    elif name == "blink":
        write_jsonl(folder / "entity.jsonl", BLINK_ENTITIES)
        write_jsonl(folder / "train.jsonl", BLINK_MENTIONS)
    else:
        write_jsonl_set(folder)


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Replaces a random stretch of bytes by something else: flips, losses, insertions, truncations."""
    at, length = draw(st.floats(0, 1)), draw(st.sampled_from([0, 1, 1, 5, 10**6]))
    put = draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"\t", b"\n", b"|", b'"', b"-1", b"[Term]\n", b"\\"])))

    def apply(content: bytes) -> bytes:
        start = int(at * len(content))
        return content[:start] + put + content[start + length :]

    return apply


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(change=damage(), which=st.integers(0, 2), on_error=st.sampled_from(["stop", "skip"]))
def test_damage_is_an_error_or_another_text(
    tmp_path_factory: pytest.TempPathFactory, name: str, change: Callable[[bytes], bytes], which: int, on_error: str
) -> None:
    folder = tmp_path_factory.mktemp(name)
    write(name, folder)
    run, files = FORMATS[name]
    file = folder / files[which % len(files)]
    file.write_bytes(change(file.read_bytes()))
    try:
        outcomes = run(folder, on_error)
    except PelRayError as error:
        assert len(str(error)) > 20
        assert not (folder / "out").exists()
    else:
        for outcome in outcomes:
            kind = outcome.manifest.request.kind
            assert len(rows_of(folder / "out", kind)) == outcome.manifest.counts["rows"] > 0
            json.dumps(outcome.manifest.to_json())


@pytest.mark.parametrize(
    ("name", "file", "kind", "key"),
    [
        ("pubtator", "corpus.txt", "mentions", "mention"),
        ("umls", "MRCONSO.RRF", "kb", "entity_id"),
        ("umls", "MRSTY.RRF", "kb", "entity_id"),
        ("jsonl", "kb.jsonl", "kb", "title"),
        ("jsonl", "mentions.jsonl", "mentions", "mention"),
        ("blink", "entity.jsonl", "kb", "title"),
        ("blink", "train.jsonl", "mentions", "mention"),
    ],
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.floats(0, 1, exclude_max=True), cut=st.floats(0, 1, exclude_max=True))
def test_a_record_that_is_cut_short_leaves_all_others_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, name: str, file: str, kind: str, key: str, place: float, cut: float
) -> None:
    """`key` is the column whose text tells that a row may be of the line that was cut."""
    whole, damaged = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("damaged")
    for folder in (whole, damaged):
        write(name, folder)
    run, _ = FORMATS[name]
    lines = (damaged / file).read_text().splitlines()
    # Of a PubTator file the annotations: without its title a document is none.
    records = [number for number, line in enumerate(lines) if name != "pubtator" or "\t" in line]
    number = records[int(place * len(records))]
    line = lines[number]
    lines[number] = line[: 1 + int(cut * (len(line) - 2))]
    (damaged / file).write_text("\n".join(lines))
    run(whole, "skip")
    run(damaged, "skip")
    left = rows_of(damaged / "out", kind)
    others = [row for row in rows_of(whole / "out", kind) if row[key] not in line]
    assert others and all(row in left for row in others)
