"""Sentences end where a reader would split the text, and no character is lost; the corpus of Python's help()."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text.plain_text import cut_sentences, python_documentation

CASES = [
    ("One. Two! Three? Four", ["One.", " Two!", " Three?", " Four"]),
    ('He said "Stop!" Then (so it was.) Over.', ['He said "Stop!"', " Then (so it was.)", " Over."]),
    ("Version 3.11 is here. It is fast.", ["Version 3.11 is here.", " It is fast."]),
    ("Wrapped at\nsome width. Next\nline.", ["Wrapped at\nsome width.", " Next\nline."]),
    ("A heading\n\nThe text", ["A heading", "\n\nThe text"]),
    ("Wait... what?! Yes.", ["Wait...", " what?!", " Yes."]),
    ("我来了。你好！再见", ["我来了。", "你好！", "再见"]),
    ("  End.  \n", ["  End.  \n"]),
    ("e.g. this", ["e.g.", " this"]),  # a limit that is stated
    (" \n ", []),
    ("", []),
]


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_sentences_end_at_marks_and_blank_lines(text: str, wanted: list[str]) -> None:
    assert cut_sentences(text) == wanted


def test_lines_are_sentences_where_the_text_is_written_so() -> None:
    assert cut_sentences("First. Still first\nSecond\n\nThird\n", by="lines") == [
        "First. Still first",
        "\nSecond",
        "\n\nThird\n",
    ]


@pytest.mark.parametrize("by", ["marks", "lines"])
@given(text=st.text(st.sampled_from("ab.!?。 \n\"')"), max_size=40))
def test_nothing_is_lost_and_no_sentence_is_white_space(by: str, text: str) -> None:
    sentences = cut_sentences(text, by)
    assert "".join(sentences) == (text if text.strip() else "")
    assert all(sentence.strip() for sentence in sentences)


def test_another_way_to_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="by must be one of"):
        cut_sentences("text", by="words")


def test_pythons_documentation_is_half_a_megabyte_of_readable_text() -> None:
    text = python_documentation().decode()
    assert 300_000 < len(text) < 1_000_000
    assert 'The "assert" statement' in text
    assert not any(line.startswith(("+-", "|", "==")) for line in text.splitlines())
    assert python_documentation() == python_documentation()


def test_without_the_documentation_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(RuntimeError, match="comes without pydoc_data"):
        python_documentation()
