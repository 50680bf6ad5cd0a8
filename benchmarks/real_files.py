"""Every importer on real corpora and ontologies: counts against those that the data's own documents state.

The data are not part of the project: PEL_RAY_DATA names their folder (default ../shared/data). ZESHEL's fixture repeats
its mentions in every split, so all but the first of each are dropped, which needs --on-error skip.

    python benchmarks/real_files.py [--quick]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _figures import Figures

DATA = Path(os.environ.get("PEL_RAY_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))


def run(out: Path, *arguments: object) -> dict[str, Any]:
    """Imports into `out` and returns the counts of both tables."""
    command = [sys.executable, "-m", "pel_ray", "import", *map(str, arguments), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    manifests = {path.parent.name: json.loads(path.read_bytes()) for path in out.glob("*/manifest.json")}
    return {kind: manifest["counts"] for kind, manifest in manifests.items()}


def splits(folder: Path) -> str:
    return ",".join(f"{split}={folder}/mentions.{split}.jsonl.gz" for split in ("train", "dev", "test"))


def main() -> None:
    if not DATA.is_dir():
        print(f"skipped: no real data at {DATA} (set PEL_RAY_DATA)")
        return
    figures = Figures()
    medmentions, mm_open, wordnet = DATA / "medmentions", DATA / "medmentions_open", DATA / "wordnet_el"
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        corpus = medmentions / "verbatim_subset_st21pv.pubtator.txt.gz"
        counts = run(out / "mm", "medmentions", corpus, "--splits", medmentions / "upstream")["mentions"]
        for split, documents, mentions in (("train", 871, 40431), ("validation", 289, 13323), ("test", 307, 13679)):
            figures.equals(f"medmentions_verbatim_{split}_documents", counts["splits"][split]["documents"], documents)
            figures.equals(f"medmentions_verbatim_{split}_mentions", counts["splits"][split]["mentions"], mentions)

        counts = run(
            out / "open", "jsonl", "--kb", mm_open / "kb.jsonl.gz", "--documents", medmentions / "docs.jsonl.gz",
            "--mentions", splits(mm_open),
        )  # fmt: skip
        figures.equals("medmentions_open_entities", counts["kb"]["kb"]["entities"], 34480)
        figures.equals("medmentions_open_with_description", counts["kb"]["kb"]["with description"], 25000)
        figures.equals("medmentions_open_with_synonyms", counts["kb"]["kb"]["with synonyms"], 24020)
        for split, mentions, entities in (("train", 15313, 1995), ("validation", 4725, 914), ("test", 4871, 949)):
            found = counts["mentions"]["splits"][split]
            figures.equals(f"medmentions_open_{split}_mentions", found["mentions"], mentions)
            figures.equals(f"medmentions_open_{split}_entities", found["entities"], entities)

        counts = run(out / "wordnet", "jsonl", "--kb", wordnet / "kb.jsonl.gz", "--mentions", splits(wordnet))
        figures.equals("wordnet_entities", counts["kb"]["kb"]["entities"], 117659)
        for split, mentions, entities in (("train", 32672, 22359), ("validation", 7037, 4764), ("test", 6966, 4788)):
            found = counts["mentions"]["splits"][split]
            figures.equals(f"wordnet_{split}_mentions", found["mentions"], mentions)
            figures.equals(f"wordnet_{split}_entities", found["entities"], entities)

        # Terms, obsolete ones and synonyms as grep counts them in the files; four synonyms of UBERON are of relations.
        for name, terms, obsolete, synonyms in (
            ("hp", 19484, 450, 23519),
            ("DiseaseOntology_2019.03.07", 11647, 2414, 17792),
            ("UBERON_craft_2015-04-23", 14074, 994, 38349),
        ):
            counts = run(out / name, "obo", mm_open / "upstream" / f"{name}.obo.gz")["kb"]
            figures.equals(f"obo_{name}_terms", counts["sources"]["terms"]["read"], terms)
            figures.equals(f"obo_{name}_entities", counts["rows"], terms - obsolete)
            figures.equals(f"obo_{name}_synonyms", counts["sources"]["synonyms"]["read"], synonyms)

        fixture = DATA / "zeshel_fixture" / "upstream" / "Wenyueh"
        counts = run(out / "zeshel", "zeshel", fixture, "--on-error", "skip")
        figures.equals("zeshel_fixture_documents", counts["kb"]["rows"], 23)
        figures.equals("zeshel_fixture_mentions", counts["mentions"]["sources"]["mentions"]["read"], 20)
    figures.finish()


if __name__ == "__main__":
    main()
