"""Sentences are where a reader would cut, and nothing is lost between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.text.sentences import cut_sentences

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
    found = cut_sentences(text, by)
    assert "".join(found) == (text if text.strip() else "")
    assert all(sentence.strip() for sentence in found)


def test_another_way_to_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="by must be one of"):
        cut_sentences("text", by="words")
