"""What makes a source file unreadable, and what does not."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pel_ray.errors import InputError
from pel_ray.formats.lines import Lines
from pel_ray.formats.spans import cut_left, cut_right
from pel_ray.storage import locate, locate_file


def lines_of(path: Path) -> list[tuple[int, str]]:
    return list(Lines([locate_file(path)]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty. Expected lines of text: name another file"),
        (gzip.compress(b"", mtime=0), "is empty. Expected lines of text"),
        (b"\n \n\n", "holds blank lines only. Expected lines of text"),
        (gzip.compress(b"a\nb\n" * 1000, mtime=0)[:-20], "cut short"),
        (gzip.compress(b"a\nb\n" * 1000, mtime=0)[:-8] + b"\0" * 8, "damaged"),
        (b"a\nb\0c\n", "x:2: holds a NUL byte.*Convert it first"),
        (b"a\nna\xefve\n", "x:2: byte 0xef at column 3 is not UTF-8"),
        (b"PK\x03\x04rest", "is a zip archive"),
        ("a\nb".encode("utf-16"), "is UTF-16 text"),
    ],
)
def test_unreadable_files_say_why(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError, match="x.*" + expected.removeprefix("x").lstrip(":")):
        lines_of(tmp_path / "x")


def test_a_missing_file_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "corpus_pubtator.txt").touch()
    with pytest.raises(InputError, match="no such file; did you mean corpus_pubtator.txt?"):
        locate_file(tmp_path / "corpus_pubtatr.txt")
    with pytest.raises(InputError, match="is a folder"):
        locate_file(tmp_path)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_line_ends_and_a_byte_order_mark_are_not_part_of_the_text(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "x").write_bytes(end.join([b"\xef\xbb\xbfone", b"", "z\u2028wei".encode(), b"three"]))
    assert lines_of(tmp_path / "x") == [(1, "one"), (2, ""), (3, "z\u2028wei"), (4, "three")]


def test_a_line_of_ten_megabytes_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(b"a" * 10_000_000 + b"\nb"))
    assert [len(text) for _, text in lines_of(tmp_path / "x")] == [10_000_000, 1]


@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20), min_size=1), st.data())
def test_pieces_read_like_the_whole(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    content = "\n".join([*texts, "end"]).encode()
    cut = data.draw(st.integers(1, len(content) - 1))
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "a.gz").write_bytes(gzip.compress(content[:cut]))
    (folder / "b.gz").write_bytes(gzip.compress(content[cut:]))
    read = Lines([locate(folder / "a.gz"), locate(folder / "b.gz")])
    assert [text for _, text in read] == [texts[0].removeprefix("\ufeff"), *texts[1:], "end"]


@given(st.text(max_size=60), st.integers(0, 70))
def test_a_cut_context_is_an_end_of_the_text_and_cuts_no_word_in_two(text: str, limit: int) -> None:
    left, right = cut_left(text, limit), cut_right(text, limit)
    assert text.endswith(left) and text.startswith(right)
    assert len(left) <= limit and len(right) <= limit
    if any(character.isspace() for character in left):
        assert left == text or left[0].isspace() or text[-len(left) - 1].isspace()
    if any(character.isspace() for character in right):
        assert right == text or right[-1].isspace() or text[len(right)].isspace()
