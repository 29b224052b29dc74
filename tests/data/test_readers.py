"""Rows out of files of all kinds; bad ones are named by file and line."""

import gzip
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.readers import delimited
from glassformer.data.readers.base import RowSource
from glassformer.data.readers.conll import read_conll
from glassformer.data.readers.datasets import read_dataset
from glassformer.data.readers.delimited import read_columns
from glassformer.data.readers.json_files import read_jsonl, read_squad
from glassformer.data.readers.text import read_parallel, read_text
from glassformer.data.records import (
    AsLabelled,
    AsPair,
    AsQuestion,
    AsTagged,
    AsText,
    BadRowError,
    LabelledRecord,
    Origin,
    PairRecord,
    QuestionRecord,
    SourceError,
    TaggedRecord,
    TextRecord,
)
from tests.helpers import types_unchecked


def real(*names: str) -> Path:
    root = os.environ.get("GLASSFORMER_DATA")
    if root is None:
        pytest.skip("GLASSFORMER_DATA does not name a folder with data sets")
    location = Path(root, *names)
    if not location.exists():
        pytest.skip(f"{location} is not there")
    return location


def large(test: Callable[..., None]) -> Callable[..., None]:
    """Whole data sets are read as users read them: over a million calls the checks of types cost more than the work."""
    return types_unchecked()(test)


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def texts(source: RowSource[TextRecord]) -> list[str]:
    return [row.text for row in source]


def where(rows: Sequence[Any]) -> list[int]:
    return [row.origin.line for row in rows]


def same_by_number(source: RowSource[Any]) -> list[Any]:
    """All rows, after checking that the index gives the same, forwards and backwards, with the same origins."""
    rows, index = list(source), source.index()
    again = [index[number] for number in reversed(range(len(index)))][::-1]
    assert again == rows == list(index)
    assert [row.origin for row in again] == [row.origin for row in rows]
    return rows


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_are_documents(tmp_path: Path, name: str, end: str, start: str, last: bool) -> None:
    lines = ["eins", " zwei\u2028halb ", "drei\x85\x0b\x0c", "quatre \ufeff 五"]
    path = put(tmp_path, name, start + end.join(lines) + end * last)
    rows = same_by_number(read_text(path, documents="line"))
    assert [row.text for row in rows] == lines
    assert where(rows) == [1, 2, 3, 4]
    assert rows[1].origin == Origin(str(path), 2)


def test_blank_lines_end_documents(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "\n \none\r\ntwo\r\n\r\n\t\r\n\r\nthree\n\n\n")
    rows = same_by_number(read_text(path, documents="blank line"))
    assert rows == [TextRecord("one\ntwo"), TextRecord("three")]
    assert where(rows) == [3, 8]


def test_a_file_is_a_document(tmp_path: Path) -> None:
    put(tmp_path, "b.txt", "b\n\nb\n")
    put(tmp_path, "a.txt.gz", "a")
    put(tmp_path, ".hidden", "h")
    assert texts(read_text(tmp_path, documents="file")) == ["a", "b\n\nb"]
    put(tmp_path, "c.txt", "")
    with pytest.raises(BadRowError, match=r"c\.txt:1: empty text"):
        list(read_text(tmp_path, documents="file"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_markers_end_documents(tmp_path: Path, end: str) -> None:
    text = "<|end|>\none<|end|>two\n\ntwo\n<|end|>\n\nthree <|en d|>\n<|end|>\n"
    path = put(tmp_path, "a.txt", text.replace("\n", end))
    rows = same_by_number(read_text(path, documents="marker", marker="<|end|>"))
    assert [row.text for row in rows] == ["one", "two\n\ntwo", "three <|en d|>"]
    assert where(rows) == [2, 2, 7]
    put(tmp_path, "a.txt", "one<|end|>\n<|end|>two")
    with pytest.raises(BadRowError, match=r"a\.txt:2: empty text"):
        list(read_text(path, documents="marker", marker="<|end|>"))


@given(pieces=st.lists(st.text(alphabet="ab\n", min_size=0, max_size=6).filter(str.strip), min_size=1, max_size=5))
def test_marked_documents_come_out_as_they_went_in(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    path = put(tmp_path_factory.mktemp("marked"), "a.txt", "|".join(pieces))
    assert texts(read_text(path, documents="marker", marker="|")) == [piece.strip("\n") for piece in pieces]


def test_the_marker_is_said_exactly_if_it_is_needed(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "a")
    with pytest.raises(SourceError, match="marker goes with documents='marker'"):
        read_text(path, documents="marker")
    with pytest.raises(SourceError, match="marker goes with documents='marker'"):
        read_text(path, documents="line", marker="x")


def test_objects_by_line(tmp_path: Path) -> None:
    rows = [
        {"a": {"en": "one", "de": "eins"}, "b.c": "x", "n": 1},
        {"b.c": "y\nz", "a": {"de": "zwei", "en": "two"}, "n": 0},
    ]
    path = put(tmp_path, "a.jsonl", "\n".join(json.dumps(row) for row in rows))
    assert same_by_number(read_jsonl(path, AsText("b.c"))) == [TextRecord("x"), TextRecord("y\nz")]
    pairs = same_by_number(read_jsonl(path, AsPair("a.en", "a.de", "en", "de")))
    assert pairs == [PairRecord("one", "eins", "en", "de"), PairRecord("two", "zwei", "en", "de")]
    labelled = same_by_number(read_jsonl(path, AsLabelled("b.c", "n", second="a.en", labels=("no", "yes"))))
    assert labelled == [LabelledRecord("x", "yes", "one"), LabelledRecord("y\nz", "no", "two")]
    assert [row.label for row in read_jsonl(path, AsLabelled("b.c", "n"))] == ["1", "0"]


BAD_OBJECTS = {
    "invalid JSON": ['{"t": "a"', "", "[1]", "nul", "[" * 100_000],
    "missing field": ['{"x": "a"}', '{"t": null}', "{}"],
    "wrong type": ['{"t": 3}', '{"t": ["a"]}'],
    "empty text": ['{"t": ""}', '{"t": " \\n "}', '{"t": "\\u2003"}'],
    "half a character": ['{"t": "a\\ud83d"}'],
}


@pytest.mark.parametrize(("reason", "row"), [(reason, row) for reason, rows in BAD_OBJECTS.items() for row in rows])
def test_a_bad_object_stops_or_is_counted(tmp_path: Path, reason: str, row: str) -> None:
    path = put(tmp_path, "a.jsonl", f'{{"t": "one"}}\n{row}\n{{"t": "three"}}\n')
    stopping = read_jsonl(path, AsText("t"))
    for reading in (lambda: list(stopping), stopping.index):
        with pytest.raises(BadRowError, match=rf"a\.jsonl:2: {reason}.*on_bad_row='skip'") as caught:
            reading()
        assert (caught.value.reason, caught.value.origin) == (reason, Origin(str(path), 2))
    skipping = read_jsonl(path, AsText("t"), on_bad_row="skip")
    rows = same_by_number(skipping)
    assert [row.text for row in rows] == ["one", "three"]
    assert where(rows) == [1, 3]
    assert (skipping.stats.good, dict(skipping.stats.bad)) == (2, {reason: 1})


def test_the_tally_counts_by_reason_keeps_a_few_and_starts_anew(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", '{"t": ""}\n' * 7 + "{}\n" * 2 + '{"t": "a"}\n')
    source = read_jsonl(path, AsText("t"), on_bad_row="skip")
    for _ in range(2):
        assert len(list(source)) == 1
        assert str(source.stats).startswith("1 rows; left out 9: 7 × empty text, 2 × missing field\n")
        assert [line.split(": ")[0] for line in source.stats.first] == [f"{path}:{n}" for n in range(1, 6)]
        assert source.stats.first[0].endswith(": empty text: 't' is ''. Fill it in or take the row out.")
    assert source.index().stats.bad.total() == 9


def test_what_is_not_utf_8_is_a_bad_row_and_spoils_no_neighbour(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "grün\n".encode() + "grün\n".encode("latin-1") + b"end\n")
    with pytest.raises(BadRowError, match=r"a\.txt:2: invalid UTF-8: byte 0xfc after b'gr'"):
        list(read_text(path, documents="line"))
    assert texts(read_text(path, documents="line", on_bad_row="skip")) == ["grün", "end"]
    with pytest.raises(BadRowError, match=r"a\.txt:2: invalid UTF-8"):  # the line, not the document's first
        list(read_text(path, documents="file"))
    with pytest.raises(BadRowError, match=r"b\.txt:1: invalid UTF-8"):
        list(read_text(put(tmp_path, "b.txt", "abc".encode("utf-16")), documents="line"))


def test_columns_by_name_and_number(tmp_path: Path) -> None:
    path = put(tmp_path, "a.tsv", 'label\ttext\tmore\nno\t"quoted" it is\tx\nyes\t"\ty\r\n')
    expected = [LabelledRecord('"quoted" it is', "no"), LabelledRecord('"', "yes")]
    assert same_by_number(read_columns(path, AsLabelled(), separator="\t", quoted=False)) == expected
    assert same_by_number(read_columns(path, AsLabelled(1, "label"), separator="\t", quoted=False)) == expected
    plain = read_columns(path, AsLabelled(1, 0), separator="\t", quoted=False, header=False)
    assert same_by_number(plain) == [LabelledRecord("text", "label"), *expected]
    with pytest.raises(SourceError, match=r"no column 'txt'; its columns, with '\\t' between them, are label"):
        list(read_columns(path, AsText("txt"), separator="\t", quoted=False))
    with pytest.raises(SourceError, match="no column 3"):
        list(read_columns(path, AsText(3), separator="\t", quoted=False))
    with pytest.raises(SourceError, match=r"no column 'label_name'; .* text, more\. Set label='label'\.") as found:
        list(read_columns(path, AsLabelled(label="label_name"), separator="\t", quoted=False))
    assert found.value.message(lambda setting: str(setting[2])).endswith(
        "Set data.columns.label."
    )  # as a recipe names it
    with pytest.raises(SourceError, match=r"no column 'stars'; .* Set label to one of them\."):
        list(
            read_columns(put(tmp_path, "d", "text,class\na,b\n"), AsLabelled(label="stars"), separator=",", quoted=True)
        )
    with pytest.raises(SourceError, match=r"no column 'txt'; .* Set text='text'\."):
        list(read_columns(path, AsText("txt"), separator="\t", quoted=False))
    for header, quoted in (("text,class", True), ('"text","class"', False), ("text\tclass", True)):
        other = "\t" if "\t" in header else ","
        wrong = read_columns(put(tmp_path, "e", f"{header}\na{other}b\n"), AsText(), separator=";", quoted=quoted)
        with pytest.raises(SourceError, match=r"no column 'text'; .*';' between them") as found:
            list(wrong)
        assert str(found.value).endswith(f"Set separator={other!r}.")
    with pytest.raises(SourceError, match="columns have numbers"):
        read_columns(path, AsText(), separator="\t", quoted=False, header=False)
    with pytest.raises(SourceError, match="separator must be one character"):
        read_columns(path, AsText(), separator=", ", quoted=True)
    with pytest.raises(SourceError, match="same name"):
        list(read_columns(put(tmp_path, "b", "a,a\n"), AsText("a"), separator=",", quoted=True))
    with pytest.raises(SourceError, match="is empty"):
        list(read_columns(put(tmp_path, "c", ""), AsText("a"), separator=",", quoted=True))


CELLS = st.text(alphabet='ab",;\n\u2028 \x1c', max_size=8).filter(lambda cell: cell.strip())


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n"]))
def test_quoted_columns_come_out_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], end: str
) -> None:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if set(text) & set('",\n') else text

    text = "".join(f"{cell(a)},{cell(b)}{end}" for a, b in [("one", "two"), *rows])
    source = read_columns(
        put(tmp_path_factory.mktemp("csv"), "a.csv", text), AsPair("one", "two"), separator=",", quoted=True
    )
    result = same_by_number(source)
    assert [(row.source, row.target) for row in result] == rows
    lines = [1]
    for a, b in [("one", "two"), *rows]:
        lines.append(lines[-1] + 1 + a.count("\n") + b.count("\n"))
    assert where(result) == lines[1:-1]


def test_a_quoted_column_may_be_long(tmp_path: Path) -> None:
    long = "word " * 40_000  # more than the limit of Python's csv module
    path = put(tmp_path, "a.csv", f'text,label\n"{long}",x\n')
    assert next(iter(read_columns(path, AsText(), separator=",", quoted=True))).text == long


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("only one", "wrong number of columns"),
        ("a,b,c", "wrong number of columns"),
        ("", "wrong number of columns"),
        ('"a" b,c', "bad quotes"),
        ('"never closed,c', "bad quotes"),
        ('5" pipe,c', "bad quotes"),
        (",x", "empty text"),
    ],
)
def test_a_bad_row_of_columns_costs_no_other(tmp_path: Path, row: str, reason: str) -> None:
    path = put(tmp_path, "a.csv", f"text,label\none,x\n{row}\nthree,y\nfour,y\n")
    with pytest.raises(BadRowError, match=rf"a\.csv:3: {reason}"):
        list(read_columns(path, AsText(), separator=",", quoted=True))
    rows = same_by_number(read_columns(path, AsText(), separator=",", quoted=True, on_bad_row="skip"))
    assert [row.text for row in rows] == ["one", "three", "four"]
    assert where(rows) == [2, 4, 5]


def test_a_quote_that_is_not_closed_soon_does_not_swallow_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "_LONGEST_QUOTED_ROW", 40)
    good = [("a\n\nb", "x"), *[("c", "y")] * 20, ('d "e"', "z")]
    text = "".join('"{}",{}\n'.format(item.replace('"', '""'), two) for item, two in good)
    path = put(tmp_path, "a.csv", f'text,label\nopen,"x\n{text}')
    source = read_columns(path, AsPair("text", "label"), separator=",", quoted=True, on_bad_row="skip")
    rows = same_by_number(source)
    assert [(row.source, row.target) for row in rows] == good
    assert where(rows) == [3, *range(6, 27)]
    assert dict(source.stats.bad) == {"bad quotes": 1}


def test_an_unknown_label_is_a_bad_row_that_lists_the_known(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "good,joy\nbad,sadnes\n")
    make = AsLabelled(0, 1, labels=("joy", "sadness"))
    with pytest.raises(
        BadRowError, match=r"a\.csv:2: unknown label: 'sadnes' \(did you mean 'sadness'\?\); known are joy"
    ):
        list(read_columns(path, make, separator=",", quoted=False, header=False))
    for label in ("2", "-1", "true", "0.5", "[]"):
        path = put(tmp_path, "b.jsonl", f'{{"text": "a", "label": {label}}}\n')
        with pytest.raises(BadRowError, match="unknown label"):
            list(read_jsonl(path, AsLabelled(labels=("joy", "sadness"))))


def test_labels_without_names_may_be_numbers(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", "".join(f'{{"text": "a", "label": {label}}}\n' for label in ("0.5", "-3", "1e30")))
    assert [row.label for row in same_by_number(read_jsonl(path, AsLabelled()))] == ["0.5", "-3", "1e+30"]
    for label in ("NaN", "-Infinity", "1e999", "true", "[]", '""'):
        path = put(tmp_path, "b.jsonl", f'{{"text": "a", "label": {label}}}\n')
        with pytest.raises(
            BadRowError, match=r"unknown label: .*; labels are names or finite numbers\. Correct it, or"
        ):
            list(read_jsonl(path, AsLabelled()))


@pytest.mark.parametrize("end", ["\n", "\n\n", "\r\n \r\n\t\r\n"])
def test_blank_lines_at_the_end_of_a_file_are_passed_over(tmp_path: Path, end: str) -> None:
    def read(text: str, make: Callable[[Path], RowSource[Any]]) -> list[Any]:
        return same_by_number(make(put(tmp_path, "a", text)))

    objects, middle = '{"text": "a"}\n{"text": "b"}', '{"text": "a"}\n\n{"text": "b"}'
    assert len(read(objects + end, lambda path: read_jsonl(path, AsText()))) == 2
    with pytest.raises(BadRowError, match="a:2: invalid JSON"):
        read(middle + end, lambda path: read_jsonl(path, AsText()))
    for quoted in (True, False):
        columns = partial(read_columns, make=AsPair(0, 1), separator=",", quoted=quoted, header=False)
        assert len(read("a,b\nc,d" + end, columns)) == 2
        with pytest.raises(BadRowError, match="a:2: wrong number of columns"):
            read("a,b\n\nc,d" + end, columns)
    cells = partial(read_columns, make=AsPair(0, 1), separator="\t", quoted=False, header=False)
    with pytest.raises(BadRowError, match="a:2: empty"):  # a row, of empty cells
        read("a\tb\n\t\n", cells)
    several = [put(tmp_path, "a", objects + end), put(tmp_path, "b", objects)]
    assert where(same_by_number(read_jsonl(several, AsText()))) == [1, 2, 1, 2]


def test_what_to_do_about_columns_too_many_depends_on_quotes(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "a,b\nc,d,e\n")
    for quoted, remedy in ((True, "put quotes around columns"), (False, "set quoted=True for columns")):
        with pytest.raises(BadRowError, match=f"Correct the row, or {remedy} that hold the separator"):
            list(read_columns(path, AsPair(0, 1), separator=",", quoted=quoted, header=False))


def test_an_index_may_end_before_the_file(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", '{"text": "a"}\n{\n{"text": "b"}\n{"text": "c"}\n{\n')
    source = read_jsonl(path, AsText(), on_bad_row="skip")
    index = source.index(2)
    assert ([row.text for row in index], where(list(index))) == (["a", "b"], [1, 3])
    assert (index.stats.good, index.stats.bad.total()) == (2, 1)
    assert [len(source.index(limit)) for limit in (1, 3, 4, None)] == [1, 3, 3, 3]
    assert len(read_jsonl(path, AsText()).index(1)) == 1


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_parallel_files(tmp_path: Path, packed: str) -> None:
    for part in ("1", "2"):
        put(tmp_path, f"{part}.en", f"one {part}\r\ntwo {part}\r\n")
        put(tmp_path, f"{part}.de{packed}", f"\ufeffeins {part}\nzwei {part}")
    source = read_parallel(tmp_path / "*.en", f"{tmp_path}/*.de{packed}", source_language="en", target_language="de")
    rows = same_by_number(source)
    assert rows == [
        PairRecord(f"{a} {n}", f"{b} {n}", "en", "de") for n in "12" for a, b in (("one", "eins"), ("two", "zwei"))
    ]
    assert rows[3].origin == Origin(str(tmp_path / "2.en"), 2)


def test_parallel_files_end_together(tmp_path: Path) -> None:
    long, short = put(tmp_path, "a.en", "1\n2\n3\n"), put(tmp_path, "a.de", "1\n2")
    for sides, ended in (((long, short), "de"), ((short, long), "de")):
        with pytest.raises(SourceError, match=rf"a\.{ended} ends after line 2 but .*a\.en goes on with line 3"):
            list(read_parallel(*sides, on_bad_row="skip"))
    with pytest.raises(SourceError, match="1 source files cannot pair with 2"):
        read_parallel(long, [long, short])
    put(tmp_path, "a.de", "1\n \n3\n")
    with pytest.raises(BadRowError, match=r"a\.de:2: empty text: the target"):
        list(read_parallel(long, short))
    assert [row.source for row in read_parallel(long, short, on_bad_row="skip")] == ["1", "3"]


CONLL = "-DOCSTART- O\n\n# a comment\nen:The\tDT\tO\r\nen:EU\tNN\tB-ORG\r\n\r\nen:.\t.\tO"


def test_conll_sentences(tmp_path: Path) -> None:
    path = put(tmp_path, "a", CONLL)
    source = read_conll(path, prefix="en:", ignored=("#", "-DOCSTART-"))
    assert same_by_number(source) == [TaggedRecord(("The", "EU"), ("O", "B-ORG")), TaggedRecord((".",), ("O",))]
    assert where(list(source)) == [3, 7]
    source = read_conll(path, words=0, tags=1, separator=None, ignored=("#", "-DOCSTART-"))
    assert next(iter(source)) == TaggedRecord(("en:The", "en:EU"), ("DT", "NN"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("en:a", "wrong number of columns"),
        ("a\tb\tO", "missing prefix"),
        ("en:\tb\tO", "empty text"),
        ("en:a\tb\t", "empty text"),
    ],
)
def test_a_bad_word_is_named_by_its_own_line(tmp_path: Path, line: str, reason: str) -> None:
    path = put(tmp_path, "a", f"{CONLL}\n\nen:x\tx\tO\n{line}\n\nen:y\ty\tO\n")
    settings: dict[str, Any] = {"tags": 2, "prefix": "en:", "ignored": ("#", "-DOCSTART-")}
    with pytest.raises(BadRowError, match=rf"a:10: {reason}"):
        list(read_conll(path, **settings))
    assert [row.words[0] for row in read_conll(path, **settings, on_bad_row="skip")] == ["The", ".", "y"]


CONTEXT = "Die Brücke 🌉 steht in Köln."


def squad(*questions: dict[str, Any]) -> str:
    return json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]}
    )


def question(name: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    result = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "Wo?", "answers": result, **more}


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_questions(tmp_path: Path, name: str) -> None:
    answers = ("Köln", CONTEXT.index("Köln")), ("in Köln", CONTEXT.index("in Köln"))
    none = question("2", is_impossible=True, plausible_answers=[{"text": "Köln", "answer_start": 0}])
    path = put(tmp_path, name, squad(question("1", *answers), none, question("3", answers[0], is_impossible=False)))
    rows = same_by_number(read_squad(path))
    assert rows[0] == QuestionRecord("1", "Wo?", CONTEXT, answers)
    assert [len(row.answers) for row in rows] == [2, 0, 1]
    assert where(rows) == [1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (question("2", ("Köln", 23)), "answer not at its offset.*but occurs at 22"),
        (question("2", ("Bonn", 22)), "answer not at its offset.*does not occur"),
        (question("2", ("Köln", -5)), "answer not at its offset"),
        (question("2", ("Köln", 2**40)), "answer not at its offset"),
        (question("2"), "answers contradict is_impossible"),
        (question("2", ("Köln", 22), is_impossible=True), "answers contradict is_impossible"),
        (question("1", ("Köln", 22)), "repeated id: '1' is also that of .*a.json:1"),
        ({"id": "2", "question": "Wo?"}, "missing field"),
        (question("2", ("", 3)), "empty text"),
    ],
)
def test_bad_questions(tmp_path: Path, wrong: dict[str, Any], reason: str) -> None:
    path = put(tmp_path, "a.json", squad(question("1", ("Köln", 22)), wrong, question("3", ("Die", 0))))
    with pytest.raises(BadRowError, match=rf"a\.json:2: {reason}"):
        list(read_squad(path))
    assert [row.id for row in same_by_number(read_squad(path, on_bad_row="skip"))] == ["1", "3"]


@pytest.mark.parametrize("text", ['{"data": [{}]}', "[]", "{", '{"data": 3}'])
def test_a_file_that_is_no_squad(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match=r"a\.json.*(SQuAD's form|invalid JSON)"):
        list(read_squad(put(tmp_path, "a.json", text), on_bad_row="skip"))


class Table:
    """What a ``datasets.Dataset`` offers, as far as it is used."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.column_names = list(rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


ROWS: list[dict[str, Any]] = [
    {"tokens": ["a", "b"], "ner_tags": [0, 1], "translation": {"en": "x", "fr": "y"}, "id": "1", "question": "q",
     "context": "an answer", "answers": {"text": ["answer"], "answer_start": [3]}},
    {"tokens": ["c"], "ner_tags": [0, 1], "translation": {"en": "z", "fr": None}, "id": "2", "question": "q",
     "context": "an answer", "answers": {"text": [], "answer_start": []}},
]  # fmt: skip


def fake(rows: list[dict[str, Any]], tmp_path: Path) -> tuple[Any, Any]:  # noqa: ARG001
    return Table(rows), {"train": Table(rows), "test": Table(rows[:1])}


def installed(rows: list[dict[str, Any]], tmp_path: Path) -> tuple[Any, Any]:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed; a stand-in is tested")
    table = datasets.Dataset.from_list(rows)
    folder = tmp_path / "saved"
    datasets.DatasetDict(train=table, test=table.select([0])).save_to_disk(str(folder))
    return table, folder


@pytest.mark.parametrize("make", [fake, installed])
def test_data_sets(tmp_path: Path, make: Callable[[list[dict[str, Any]], Path], tuple[Any, Any]]) -> None:
    table, splits = make(ROWS, tmp_path)
    questions = same_by_number(read_dataset(table, AsQuestion()))
    assert [row.answers for row in questions] == [(("answer", 3),), ()]
    tagged = read_dataset(splits, AsTagged(labels=["O", "B"]), split="train", on_bad_row="skip")
    assert same_by_number(tagged) == [TaggedRecord(("a", "b"), ("O", "B"))]
    assert dict(tagged.stats.bad) == {"words and tags do not match": 1}
    with pytest.raises(BadRowError, match=r":2: missing field"):
        list(read_dataset(table, AsPair("translation.en", "translation.fr")))
    with pytest.raises(SourceError, match="has no column 'text'; its columns are tokens, ner_tags"):
        read_dataset(table, AsText())
    with pytest.raises(SourceError, match="has the splits train, test"):
        read_dataset(splits, AsQuestion(), split="val")
    with pytest.raises(SourceError, match="has no splits"):
        read_dataset(table, AsQuestion(), split="train")


class ClassLabel:
    """Numbers with names, as ``datasets`` has them."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)


@pytest.mark.parametrize("held", [lambda item: SimpleNamespace(feature=item), lambda item: [item]])
def test_numbered_classes_of_data_sets_have_names(held: Callable[[object], object]) -> None:
    rows = [{"words": ["a", "b"], "tags": [0, 1], "in": {"label": 1}, "text": "a", "number": 1}]
    table: Any = Table(rows)
    kinds = {"text": object(), "number": object(), "in": {"label": ClassLabel("no", "yes")}}
    table.features = {**kinds, "words": held(object()), "tags": held(ClassLabel("O", "B"))}
    assert same_by_number(read_dataset(table, AsTagged("words", "tags"))) == [TaggedRecord(("a", "b"), ("O", "B"))]
    for make, label in (
        (AsLabelled("text", "in.label"), "yes"),
        (AsLabelled("text", "number"), "1"),
        (AsLabelled("text", "in.label", labels=("bad", "good")), "good"),
    ):
        assert same_by_number(read_dataset(table, make)) == [LabelledRecord("a", label)]
    rows[0]["in"] = {"label": -1}  # how ``datasets`` says that there is none
    with pytest.raises(BadRowError, match=r"mine:1: unknown label: -1; known are no, yes"):
        list(read_dataset(table, AsLabelled("text", "in.label"), name="mine"))


def test_what_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match=r"is a generator; expected a datasets\.Dataset"):
        read_dataset((row for row in ROWS), AsText())
    with pytest.raises(SourceError, match="is no folder"):
        read_dataset(tmp_path / "none", AsText())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SourceError, match="needs the package datasets"):
        read_dataset(tmp_path, AsText())


def test_files_are_found_in_order_and_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        put(tmp_path, name, name)
    (tmp_path / "inner").mkdir()
    put(tmp_path / "inner", "d.txt", "d.txt")
    assert texts(read_text(tmp_path, documents="line")) == ["a.txt", "b.txt", "c.md"]
    assert texts(read_text(f"{tmp_path}/**/*.txt", documents="line")) == ["a.txt", "b.txt", "d.txt"]
    assert texts(read_text([tmp_path / "c.md", tmp_path / "*.txt"], documents="line")) == ["c.md", "a.txt", "b.txt"]
    put(tmp_path, "[x].txt", "a name that looks like a pattern")
    assert len(texts(read_text(tmp_path / "[x].txt", documents="line"))) == 1
    with pytest.raises(SourceError, match=r"a\.txt is named twice"):
        read_text([tmp_path / "a.txt", tmp_path / "inner/../a*"], documents="line")
    with pytest.raises(SourceError, match=r"z\.txt: no such file"):
        read_text([tmp_path / "a.txt", tmp_path / "z.txt"], documents="line")
    with pytest.raises(SourceError, match="no file is named"):
        read_text([], documents="line")


def test_damaged_and_misnamed_files(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress("\n".join(map(str, range(10_000))).encode())[:-2000])
    for read in (lambda: texts(read_text(path, documents="line")), read_text(path, documents="line").index):
        with pytest.raises(SourceError, match=r"a\.gz: the compressed file is damaged after line \d\d+"):
            read()
    path.write_bytes(b"plain\n")
    with pytest.raises(SourceError, match=r"named \.gz but is not"):
        texts(read_text(path, documents="line"))
    put(tmp_path, "b", gzip.compress(b"packed without the name"))
    assert texts(read_text(tmp_path / "b", documents="line")) == ["packed without the name"]


def test_a_file_that_changes_after_it_was_indexed_is_noticed(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "one\ntwo\n")
    index = read_text(path, documents="line").index()
    assert index[-1] == TextRecord("two")
    with pytest.raises(IndexError, match="2 rows"):
        index[2]
    put(tmp_path, "a.txt", "and one\ntwo\n")
    with pytest.raises(SourceError, match="has changed since it was indexed"):
        index[0]


def test_the_fingerprint_follows_the_rows_and_not_the_place(tmp_path: Path) -> None:
    first = read_text(put(tmp_path, "a.txt", "one\ntwo\n"), documents="line").index().fingerprint
    again = read_text(put(tmp_path, "b.txt.gz", "one\r\ntwo"), documents="line").index().fingerprint
    other = read_text(put(tmp_path, "c.txt", "two\none\n"), documents="line").index().fingerprint
    assert first == again != other


def test_walking_holds_nothing(tmp_path: Path) -> None:
    """Rows are made when they are asked for: an error further down does not keep the first from coming."""
    rows = iter(read_text(put(tmp_path, "a.txt", b"one\n" * 1000 + b"\xff\n"), documents="line"))
    assert [next(rows).text for _ in range(1000)] == ["one"] * 1000
    with pytest.raises(BadRowError, match="1001"):
        next(rows)


@pytest.mark.parametrize(("name", "count"), [("train", 16_000), ("val", 2_000)])
@large
def test_real_emotions(name: str, count: int) -> None:
    labels = ("sadness", "joy", "love", "anger", "fear", "surprise")
    make = AsLabelled("text", "label_name", labels=labels)
    index = read_columns(real("emotion", f"{name}.txt"), make, separator=";", quoted=False).index()
    assert len(index) == count
    if name == "train":
        assert index[2] == LabelledRecord("im grabbing a minute to post i feel greedy wrong", "anger")


@pytest.mark.parametrize(("name", "count"), [("train", 29_000), ("val", 1_014), ("test_2016_flickr", 1_000)])
@large
def test_real_captions(name: str, count: int) -> None:
    folder = real("multi30k")
    index = read_parallel(folder / f"{name}.en.gz", folder / f"{name}.de.gz").index()
    assert len(index) == count
    assert index[count - 1].origin.line == count
    with pytest.raises(SourceError, match="ends after line"):
        list(read_parallel(folder / f"{name}.en.gz", folder / ("val.fr.gz" if name != "val" else "train.fr.gz")))


@pytest.mark.parametrize(("name", "count"), [("train", 20_000), ("dev", 10_000)])
@large
def test_real_entities(name: str, count: int) -> None:
    rows = list(read_conll(real("wikiann-en", name), prefix="en:"))
    assert len(rows) == count
    tags = {tag for row in rows for tag in row.tags}
    assert tags == {"O", *(f"{side}-{kind}" for side in "BI" for kind in ("LOC", "ORG", "PER"))}


@large
def test_real_questions() -> None:
    assert len(read_squad(real("squad", "train.json")).index()) == 4_961


@large
def test_real_translations() -> None:
    path = real("tatoeba-en-zh", "cmn.txt")
    pairs = read_columns(path, AsPair(0, 1, "en", "zh"), separator="\t", quoted=False, header=False)
    assert sum(1 for _ in pairs) == 29_155


@large
def test_real_stories() -> None:
    path = real("tinystories", "tinystories_2M_cased.txt")
    stories = read_text(path, documents="marker", marker="<|endoftext|>").index()
    assert len(stories) == 2_316 + 1
    assert not any("<|endoftext|>" in story.text or story.text != story.text.strip("\n") for story in stories)


def test_a_word_is_not_its_own_tag(tmp_path: Path) -> None:
    """A file divided by spaces and read by tabs has one column, which is the first and the last."""
    path = tmp_path / "tags.txt"
    path.write_text("EU NNP B-ORG\nrejects VBZ O\n")
    with pytest.raises(BadRowError, match=r"tags\.txt:1: wrong number of columns: 1 columns .* separator"):
        list(read_conll(path))
    (row,) = read_conll(path, separator=None)
    assert row == TaggedRecord(("EU", "rejects"), ("B-ORG", "O"))


def test_a_squad_file_that_is_nested_too_deeply(tmp_path: Path) -> None:
    path = put(tmp_path, "a.json", '{"data": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(SourceError, match=r"a\.json: its JSON is nested too deeply"):
        list(read_squad(path))
