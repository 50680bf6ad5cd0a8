"""Memory and speed of `import umls` on a generated RRF set (UMLS itself is licensed).

The set has the shape of the real one: three names a concept, four of ten in other languages, a definition for one
concept in fourteen. Peak memory is that of the whole process. The other side is the usual notebook: pandas loads
MRCONSO, filters and groups it.

    python benchmarks/import_umls.py [--quick] [--rows 14000000]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _figures import Figures

FULL_ROWS = 14_000_000
TYPES = [("T047", "Disease or Syndrome"), ("T121", "Pharmacologic Substance"), ("T061", "Therapeutic Procedure")]
TYPES += [("T033", "Finding"), ("T080", "Qualitative Concept"), ("T204", "Eukaryote")]
LANGUAGES = ["ENG"] * 6 + ["SPA", "FRE", "GER", "JPN"]
SOURCES = ["SNOMEDCT_US", "MSH", "NCI", "MTH", "MDR", "LNC"]
SYLLABLES = ["car", "di", "o", "my", "neph", "ro", "path", "itis", "al", "gia", "hyper", "ten", "sion", "derm", "ato"]
# What people write in a notebook for the same names: no definitions, no report, one vocabulary of types.
NOTEBOOK = """
import resource, sys
import pandas
folder = sys.argv[1]
rows = pandas.read_csv(f"{folder}/MRCONSO.RRF", sep="|", header=None, dtype=str, usecols=[0, 1, 2, 4, 6, 14, 16],
                       quoting=3, na_filter=False)
types = pandas.read_csv(f"{folder}/MRSTY.RRF", sep="|", header=None, dtype=str, usecols=[0, 1], quoting=3)
kept = types[types[1].isin(["T047", "T121", "T061", "T033", "T204"])]
rows = rows[(rows[1] == "ENG") & (rows[16] == "N") & rows[0].isin(kept[0])]
rows["rank"] = (rows[2] == "P") * 4 + (rows[4] == "PF") * 2 + (rows[6] == "Y")
rows = rows.sort_values([0, "rank"], ascending=[True, False], kind="stable")
kb = rows.groupby(0)[14].agg(list).reset_index()
kb.to_parquet(f"{folder}/notebook.parquet")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, len(kb))
"""


def generate(folder: Path, num_rows: int) -> None:
    """Writes MRCONSO, MRSTY and MRDEF with `num_rows` names, sorted by concept like the real ones."""
    chance = random.Random(13)
    folder.mkdir()
    with open(folder / "MRCONSO.RRF", "w") as names, open(folder / "MRSTY.RRF", "w") as types:
        with open(folder / "MRDEF.RRF", "w") as definitions:
            row = concept = 0
            while row < num_rows:
                concept += 1
                cui = f"C{concept:07d}"
                type_id, type_name = chance.choice(TYPES)
                types.write(f"{cui}|{type_id}|A1.1|{type_name}|AT{concept}|256|\n")
                if concept % 14 == 0:
                    text = " ".join(word(chance) for _ in range(30))
                    definitions.write(f"{cui}|A{row}|AT{concept}||{chance.choice(SOURCES)}|{text}|N|256|\n")
                for number in range(chance.randint(1, 5)):
                    row += 1
                    first = number == 0
                    language = "ENG" if first else chance.choice(LANGUAGES)
                    flags = ("P", "PF", "Y") if first else ("S", "VO", "N")
                    text = " ".join(word(chance) for _ in range(chance.randint(1, 5)))
                    names.write(
                        f"{cui}|{language}|{flags[0]}|L{row}|{flags[1]}|S{row}|{flags[2]}|A{row}||M{row}|D{row}|"
                        f"{chance.choice(SOURCES)}|PT|{row}|{text}|0|{'N' if row % 20 else 'O'}|256|\n"
                    )


def word(chance: random.Random) -> str:
    return "".join(chance.choices(SYLLABLES, k=3))


def run_import(folder: Path) -> tuple[float, float, int]:
    """Seconds of the whole process, peak GiB, and entities kept."""
    out = folder / "out"
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pel_ray", "import", "umls", str(folder), "--out", str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - began
    manifest = json.loads((out / "kb" / "manifest.json").read_bytes())
    return seconds, manifest["peak_memory_bytes"] / 2**30, manifest["counts"]["rows"]


def run_notebook(folder: Path) -> tuple[float, float, int]:
    began = time.perf_counter()
    command = [sys.executable, "-c", NOTEBOOK, str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return time.perf_counter() - began, float(printed[0]), int(printed[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows")
    parser.add_argument("--rows", type=int, help="rows of the larger set (default 4,000,000)")
    arguments = parser.parse_args()
    large = arguments.rows or (1_000_000 if arguments.quick else 4_000_000)
    small = large // 4
    figures = Figures()
    peaks = []
    with tempfile.TemporaryDirectory() as temporary:
        for num_rows in (small, large):
            folder = Path(temporary) / str(num_rows)
            generate(folder, num_rows)
            notebook = run_notebook(folder)
            ours = run_import(folder)
            peaks.append(ours[1])
            for name, (seconds, peak, kept) in (("pel-ray", ours), ("pandas notebook", notebook)):
                print(
                    f"{num_rows:,} generated rows, {name}: {seconds:.1f} s, {peak:.2f} GiB, {kept:,} entities",
                    flush=True,
                )
    figures.at_most(f"umls_peak_gib_at_{large // 1000}K_rows", peaks[1], 4)
    growth = max(peaks[1] - peaks[0], 0) / (large - small)
    figures.at_most("umls_peak_gib_extrapolated_to_14M_rows", peaks[1] + growth * max(FULL_ROWS - large, 0), 4)
    figures.at_most("umls_memory_growth_for_4x_rows", peaks[1] / peaks[0], 1.25)
    figures.at_most("umls_memory_over_pandas", ours[1] / notebook[1], 0.5)
    figures.at_most("umls_time_over_pandas", ours[0] / notebook[0], 1)
    figures.finish()


if __name__ == "__main__":
    main()
