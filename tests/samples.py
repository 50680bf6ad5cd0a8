"""Small files in the formats users have, written by the tests themselves."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PUBTATOR = """\
101|t|Aspirin in fever
101|a|We gave aspirin to patients with fever and chills.
101\t0\t7\tAspirin\tChemical\tD001241
101\t11\t16\tfever\tDisease\tD005334
101\t25\t32\taspirin\tChemical\tUMLS:D001241
101\t50\t66\tfever and chills\tDisease\tD005334|D023341\tfever|chills
101\tCID\tD001241\tD005334

102|t|A rare syndrome
102|a|
102\t2\t15\trare syndrome\tDisease\t-1
"""

OBO = """\
format-version: 1.4
ontology: toy

[Term]
id: TOY:1
name: disease

[Term]
id: TOY:2
name: infection
is_a: TOY:1 ! disease

[Term]
id: TOY:3
name: influenza
namespace: toy_disease
alt_id: TOY:30
def: "An infection with a \\"flu\\" virus." [PMID:1]
synonym: "flu" EXACT layperson [PMID:1]
synonym: "the grippe" EXACT []
synonym: "flu season" RELATED []
synonym: "influenza" EXACT layperson []
xref: UMLS:C0021400
xref: MESH:D007251 "Influenza, Human"
is_a: TOY:2 {source="x"} ! infection

[Term]
id: TOY:4
name: old flu
is_obsolete: true
replaced_by: TOY:3

[Term]
id: TOY:5
name: cold {note="common"}
exact_synonym: "head cold" []
is_a: TOY:2 ! infection

[Typedef]
id: part_of
name: part of
"""


def conso(cui: str, name: str, **fields: str) -> str:
    """One row of MRCONSO; the preferred English name unless `fields` say otherwise."""
    columns = "CUI LAT TS LUI STT SUI ISPREF AUI SAUI SCUI SDUI SAB TTY CODE STR SRL SUPPRESS CVF".split()
    row = dict.fromkeys(columns, "") | {
        "LAT": "ENG",
        "TS": "P",
        "STT": "PF",
        "ISPREF": "Y",
        "SAB": "MSH",
        "SUPPRESS": "N",
    }
    return "|".join((row | {"CUI": cui, "STR": name} | fields)[column] for column in columns) + "|\n"


CONSO = "".join(
    [
        conso("C0000001", "Pyrexia", ISPREF="N"),
        conso("C0000001", "Fever"),
        conso("C0000001", "fever", STT="VC"),
        conso("C0000001", "Fieber", LAT="GER"),
        conso("C0000001", "Febrile state", SUPPRESS="O"),
        conso("C0000002", "A law", SAB="LNC"),
        conso("C0000003", "Nur deutsch", LAT="GER"),
        conso("C0000004", "Yellow", SAB="NCI"),
        conso("C0000005", "Influenza virus", TS="S"),
        conso("C0000006", "Typeless"),
    ]
)
STY = """\
C0000001|T184|A2.2.2|Sign or Symptom|AT1|256|
C0000001|T033|A2.2|Finding|AT1|256|
C0000002|T089|A2.4.1|Regulation or Law|AT2|256|
C0000003|T047|B2.2.1.2.1|Disease or Syndrome|AT3|256|
C0000004|T080|A2.1.2|Qualitative Concept|AT4|256|
C0000005|T005|A1.1.3|Virus|AT5|256|
"""
DEF = """\
C0000001|A1|AT1||CSP|First of all.|N|256|
C0000001|A1|AT2||NCI|Suppressed.|O|256|
C0000001|A1|AT3||MSH|Body too hot.|N|256|
C0000005|A1|AT4||CSP|A virus.|N|256|
"""


def write_umls(folder: Path, *, conso: str = CONSO, sty: str = STY, definitions: str | None = DEF) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "MRCONSO.RRF").write_text(conso)
    (folder / "MRSTY.RRF").write_text(sty)
    if definitions is not None:
        (folder / "MRDEF.RRF").write_text(definitions)
    return folder


ZESHEL_DOCUMENTS = {
    "castles": [
        {"document_id": "C1", "title": "Tower", "text": "Tower A tower guards the gate ."},
        {"document_id": "C2", "title": "Gate", "text": "Gate The gate is below the tower ."},
    ],
    "ships": [{"document_id": "S1", "title": "Mast", "text": "Mast A tall mast ."}],
}


def zeshel_mention(**fields: Any) -> dict[str, Any]:
    return {
        "mention_id": "M1",
        "category": "LOW_OVERLAP",
        "text": "the gate",
        "start_index": 4,
        "end_index": 5,
        "context_document_id": "C1",
        "label_document_id": "C2",
        "corpus": "castles",
    } | fields


def write_zeshel(folder: Path, mentions: Mapping[str, list[dict[str, Any]]] | None = None) -> Path:
    (folder / "documents").mkdir(parents=True)
    (folder / "mentions").mkdir()
    for world, documents in ZESHEL_DOCUMENTS.items():
        write_jsonl(folder / "documents" / f"{world}.json", documents)
    for split, rows in (mentions or {"train": [zeshel_mention()]}).items():
        write_jsonl(folder / "mentions" / f"{split}.json", rows)
    return folder


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


KB_ROWS = [
    {"id": "E1", "name": "fever", "types": ["Finding"], "description": "Too hot.", "synonyms": ["pyrexia"]},
    {"id": "E2", "name": "aspirin", "types": ["Organic Chemical"]},
    {"id": "E3", "name": "hospital", "types": ["Health Care Related Organization"]},
    {"id": "E4", "name": "scanner", "types": ["Medical Device", "Manufactured Object"]},
]
DOCUMENT_ROWS = [
    {"doc_id": "D1", "split": "train", "text": "The hospital has a scanner."},
    {"doc_id": "D2", "split": "dev", "text": "Aspirin against fever."},
]
MENTION_ROWS = [
    {"mention_id": "1", "doc_id": "D1", "start": 4, "end": 12, "text": "hospital", "label": "E3"},
    {"mention_id": "2", "doc_id": "D1", "start": 19, "end": 26, "text": "scanner", "label": ["E4", "E1"]},
    {"mention_id": "3", "doc_id": "D2", "start": 0, "end": 7, "text": "Aspirin", "label": "E2"},
    {"mention_id": "4", "doc_id": "D2", "start": 16, "end": 21, "text": "fever", "label": None},
    {"mention_id": "5", "doc_id": "D2", "start": 8, "end": 15, "text": "against", "label": "E9"},
]


BLINK_ENTITIES = [
    {"title": "zero", "text": "nothing", "world": "numbers"},
    {"title": "one", "text": "unit", "world": "numbers"},
    {"title": "red", "text": "hue", "world": "colours"},
]
BLINK_MENTIONS = [
    {"context_left": "the", "mention": "unit", "label_id": 1, "label_title": "one", "world": "numbers"},
    {"context_right": "is null", "mention": "nil", "label_id": 0, "world": "numbers"},
    {"context_left": "a", "mention": "crimson", "label_id": 0, "label_title": "red", "world": "colours"},
]


def write_jsonl_set(folder: Path) -> list[str]:
    """A small data set; returns the arguments that import it."""
    folder.mkdir(exist_ok=True)
    kb = write_jsonl(folder / "kb.jsonl", KB_ROWS)
    documents = write_jsonl(folder / "docs.jsonl.gz", DOCUMENT_ROWS)
    mentions = write_jsonl(folder / "mentions.jsonl", MENTION_ROWS)
    return ["import", "jsonl", "--kb", str(kb), "--documents", str(documents), "--mentions", str(mentions)]
