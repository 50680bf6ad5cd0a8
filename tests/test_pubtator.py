"""import pubtator and import medmentions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.formats.lines import Lines
from pel_ray.formats.pubtator import Document, mentions_of, read_documents
from pel_ray.storage import locate
from pel_ray.tally import Tally
from tests.conftest import RunCommand
from tests.reading import by_id, rows_of, sources_of
from tests.samples import PUBTATOR


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(PUBTATOR)
    return path


def test_mentions_stand_in_their_text_with_all_their_golds(pel_ray: RunCommand, corpus: Path) -> None:
    assert pel_ray("import", "pubtator", f"train={corpus}", "--out", "set", "--strip-prefixes", "UMLS:").code == 0
    mentions = by_id("set", "mentions")
    assert mentions["101:0-7"]["context_right"] == " in fever We gave aspirin to patients with fever and chills."
    assert mentions["101:25-32"]["entity_ids"] == ["D001241"]
    assert mentions["101:50-66"]["entity_ids"] == ["D005334", "D023341"]
    assert mentions["101:50-66"]["context_left"].endswith("patients with ")
    assert mentions["102:2-15"]["entity_ids"] == []
    assert {row["split"] for row in mentions.values()} == {"train"}


def test_relations_composites_and_nils_are_counted(pel_ray: RunCommand, corpus: Path) -> None:
    pel_ray("import", "pubtator", corpus, "--out", "set")
    counts = sources_of("set", "mentions")
    assert counts["relations"]["dropped"] == {"not used in linking": 1}
    assert counts["mentions"]["notes"] == {"composite, all parts kept as golds": 1, "NIL": 1}
    pel_ray("import", "pubtator", corpus, "--out", "other", "--composites", "drop")
    assert sources_of("other", "mentions")["mentions"]["dropped"] == {"composite": 1}
    assert len(rows_of("other", "mentions")) == 4


def test_offsets_that_disagree_stop_with_both_strings(pel_ray: RunCommand, corpus: Path) -> None:
    corpus.write_text(PUBTATOR.replace("0\t7\tAspirin", "1\t8\tAspirin"))
    error = pel_ray("import", "pubtator", corpus, "--out", "set").error
    assert "corpus.txt:3" in error and "'spirin '" in error and "'Aspirin'" in error and "--on-error skip" in error
    assert not Path("set").exists()


def test_offsets_that_disagree_can_be_skipped_and_are_counted(pel_ray: RunCommand, corpus: Path) -> None:
    corpus.write_text(PUBTATOR.replace("0\t7\tAspirin", "1\t8\tAspirin"))
    result = pel_ray("import", "pubtator", corpus, "--out", "set", "--on-error", "skip")
    assert result.code == 0 and "corpus.txt:3" in result.out
    assert sources_of("set", "mentions")["mentions"]["dropped"] == {"text and offsets disagree": 1}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("101|a|We", "103|a|We", "belongs to document '103'"),
        ("\tD005334\n", "\n", "has 5 tab-separated columns"),
        ("\t0\t7\t", "\t0\tx\t", "expected whole numbers"),
        ("101|t|Aspirin in fever\n", "", "abstract without a title"),
        ("101\t11\t16", "999\t11\t16", "belongs to document '999'"),
    ],
)
def test_malformed_documents_name_their_line(
    pel_ray: RunCommand, corpus: Path, old: str, new: str, expected: str
) -> None:
    corpus.write_text(PUBTATOR.replace(old, new, 1))
    error = pel_ray("import", "pubtator", corpus, "--out", "set").error
    assert expected in error and "corpus.txt:" in error
    assert not Path("set").exists()


def test_a_document_that_stands_twice_is_refused_or_counted(pel_ray: RunCommand, corpus: Path) -> None:
    corpus.write_text(f"{PUBTATOR}\n{PUBTATOR}")
    assert "document 101 stands here and at corpus.txt:1" in pel_ray("import", "pubtator", corpus, "--out", "set").error
    assert pel_ray("import", "pubtator", corpus, "--out", "set", "--on-error", "skip").code == 0
    counts = sources_of("set", "mentions")
    assert (counts["documents"]["kept"], counts["mentions"]["kept"]) == (2, 5)


def test_a_document_in_two_files_is_noticed(pel_ray: RunCommand, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("101|t|Aspirin again\n101|a|\n")
    error = pel_ray("import", "pubtator", f"train={corpus}", "test=test.txt", "--out", "set").error
    assert "test.txt:1" in error and "corpus.txt:1" in error


def test_a_file_given_twice_is_noticed_and_counted_once(pel_ray: RunCommand, corpus: Path) -> None:
    given = ["import", "pubtator", f"train={corpus}", f"test={corpus}", "--out", "set"]
    error = pel_ray(*given).error
    assert "corpus.txt:1: document 101 was read from here before" in error and "Name it once" in error
    assert pel_ray(*given, "--on-error", "skip").code == 0
    counts = sources_of("set", "mentions")
    assert (counts["documents"]["kept"], counts["mentions"]["kept"]) == (2, 5)
    assert counts["documents"]["dropped"] == {"occurs twice": 2}
    assert {row["split"] for row in rows_of("set", "mentions")} == {"train"}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (
            "tmVar:p|SUB|V|600|E;HGVS:p.V600E;VariantGroup:1;CorrespondingGene:673;RS#:113488022",
            ["tmVar:p|SUB|V|600|E", "HGVS:p.V600E", "RS#:113488022"],
        ),
        ("c|SUB|IVS35+1G|A", ["c|SUB|IVS35+1G|A"]),
        ("|Allele|T|7", ["|Allele|T|7"]),
        ("D1|D2", ["D1", "D2"]),
    ],
)
def test_a_mutation_is_not_cut_at_the_bars_within_its_id(
    pel_ray: RunCommand, tmp_path: Path, column: str, expected: list[str]
) -> None:
    (tmp_path / "x.txt").write_text(f"1|t|V600E\n1|a|\n1\t0\t5\tV600E\tMutation\t{column}\n")
    assert pel_ray("import", "pubtator", "x.txt", "--out", "set", "--composites", "drop").code == 0
    assert [row["entity_ids"] for row in rows_of("set", "mentions")] == [expected]


@pytest.mark.parametrize("start", ["-6", "11.0", " 11", "", "\uff11\uff11", "9" * 5000])
def test_an_annotation_with_a_bad_start_is_no_relation(pel_ray: RunCommand, corpus: Path, start: str) -> None:
    corpus.write_text(PUBTATOR.replace("\t11\t16", f"\t{start}\t16"))
    assert "corpus.txt:4" in pel_ray("import", "pubtator", corpus, "--out", "set").error


def test_a_span_past_the_text_is_refused(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("1|t|Title here\n1|a|\n1\t6\t99\there \tT\tC\n")
    assert "x.txt:3" in pel_ray("import", "pubtator", "x.txt", "--out", "set").error


def test_a_mark_elsewhere_does_not_excuse_wrong_offsets(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("1|t|p53 p53p53 gene\u200e\n1|a|\n1\t1\t4\tp53\tT\tC\n")
    assert "x.txt:3" in pel_ray("import", "pubtator", "x.txt", "--out", "set").error


def test_lists_and_named_splits_do_not_mix(pel_ray: RunCommand, corpus: Path) -> None:
    Path("dev.txt").write_text("102\n")
    error = pel_ray("import", "pubtator", f"train={corpus}", "--pmids", "dev=dev.txt", "--out", "set").error
    assert "takes the splits from lists" in error


def test_a_file_name_may_hold_a_comma_or_an_equals_sign(pel_ray: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "a,b=c.txt").write_text(PUBTATOR)
    assert pel_ray("import", "pubtator", "a,b=c.txt", "--out", "set").code == 0


def test_invisible_marks_that_shift_offsets_are_passed_over(pel_ray: RunCommand, tmp_path: Path) -> None:
    corpus = tmp_path / "marks.txt"
    corpus.write_text("7|t|Vitamin\u200e D\u200e and fever\n7|a|\n7\t0\t9\tVitamin D\tT1\tA\n7\t14\t19\tfever\tT2\tB\n")
    assert pel_ray("import", "pubtator", corpus, "--out", "set").code == 0
    texts = {row["entity_ids"][0]: row["mention"] for row in rows_of("set", "mentions")}
    assert texts == {"A": "Vitamin\u200e D", "B": "fever"}
    assert sources_of("set", "mentions")["mentions"]["notes"]["offsets moved past invisible marks"] == 2


def test_pmid_lists_decide_the_split_and_the_rest_is_counted(pel_ray: RunCommand, corpus: Path) -> None:
    Path("dev.txt").write_text("102\n\n")
    pel_ray("import", "pubtator", corpus, "--pmids", "dev=dev.txt", "--out", "set")
    assert [row["split"] for row in rows_of("set", "mentions")] == ["validation"]
    counts = sources_of("set", "mentions")
    assert counts["documents"]["dropped"] == {"id in no split list": 1}
    assert counts["mentions"]["dropped"] == {"of a document in no split list": 4}
    assert counts["listed ids"]["kept"] == 1


def test_medmentions_says_where_it_differs_from_the_published_counts(pel_ray: RunCommand, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus_pubtator.txt"
    corpus.write_text("1|t|Fever\n1|a|\n1\t0\t5\tFever\tT184\tUMLS:C0015967\n")
    for name, content in (("trng", "1\n"), ("dev", "2\n"), ("test", "3\n")):
        (tmp_path / f"corpus_pubtator_pmids_{name}.txt").write_text(content)
    result = pel_ray("import", "medmentions", corpus, "--out", "set")
    row = rows_of("set", "mentions")[0]
    assert (row["entity_ids"], row["types"], row["split"]) == (["C0015967"], ["Sign or Symptom"], "train")
    assert "122,241" in result.out and "-122,240" in result.out
    (tmp_path / "corpus_pubtator_pmids_dev.txt").write_text("1\n")
    assert "is in the list of train too" in pel_ray("import", "medmentions", corpus, "--out", "other").error


def test_a_list_without_ids_is_refused(pel_ray: RunCommand, corpus: Path) -> None:
    Path("dev.txt").write_text("\n \n")
    error = pel_ray("import", "pubtator", corpus, "--pmids", "dev=dev.txt", "--out", "set").error
    assert "dev.txt: holds blank lines only" in error and not Path("set").exists()


def test_medmentions_without_its_lists_says_which_option_gives_them(pel_ray: RunCommand, corpus: Path) -> None:
    assert "--splits" in pel_ray("import", "medmentions", corpus, "--out", "set").error


# Everything but line ends, tabs and other control characters may stand in a text.
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)


@st.composite
def documents(draw: st.DrawFn) -> list[tuple[str, str, list[tuple[int, int, str]]]]:
    """Title, abstract and spans (start, end, id) of a few documents."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        title, abstract = draw(texts), draw(texts)
        text = f"{title} {abstract}"
        spans = []
        for _ in range(draw(st.integers(0, 4))):
            start = draw(st.integers(0, len(text) - 1))
            end = draw(st.integers(start + 1, len(text)))
            spans.append((start, end, draw(st.sampled_from(["-1", "C1", "C2|C3", "C1+C4"]))))
        found.append((title, abstract, spans))
    return found


@given(documents())
def test_a_written_document_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[str, str, list[tuple[int, int, str]]]]
) -> None:
    path = tmp_path_factory.mktemp("pubtator") / "corpus.txt"
    lines = []
    for number, (title, abstract, spans) in enumerate(written):
        text = f"{title} {abstract}"
        lines += [f"{number}|t|{title}", f"{number}|a|{abstract}"]
        lines += [f"{number}\t{start}\t{end}\t{text[start:end]}\tT1\t{ids}" for start, end, ids in spans]
        lines.append("")
    path.write_bytes("\n".join(lines).encode())
    source, tally = Lines([locate(path)]), Tally()
    read = list(read_documents(source, tally, {}))
    assert [(document.title, document.abstract) for document in read] == [entry[:2] for entry in written]
    for document, (title, abstract, spans) in zip(read, written, strict=True):
        mentions = list(mentions_of(document, source.where, tally, context=10**6))
        assert [mention.context_left + mention.mention + mention.context_right for mention in mentions] == [
            f"{title} {abstract}" for _ in spans
        ]
        assert [len(mention.context_left) for mention in mentions] == [start for start, _, _ in spans]
        expected = [() if ids == "-1" else tuple(ids.replace("+", "|").split("|")) for _, _, ids in spans]
        assert [mention.entity_ids for mention in mentions] == expected
    assert isinstance(read[0], Document)
