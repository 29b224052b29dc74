"""The program with a real trained model, as a user would run it."""

from tests.cli.test_generate import rows, run
from tests.real.places import data

BEGIN = "Once upon a time"
GOES_ON = ", there was a little girl named Lily. She loved to play outside in the park."


def test_a_story_goes_on() -> None:
    model = data("stories260K", "stories260K.bin")
    (row,) = rows(run("generate", model, BEGIN, "--json"))
    assert row["text"].startswith(GOES_ON)
    assert row["prompt_tokens"] == 5  # BOS, once
    assert run("generate", model, BEGIN, "--stop", " One day", "--stream").stdout == f"{BEGIN}{GOES_ON}\n"
    likely, unlikely, _ = rows(run("score", model, BEGIN + GOES_ON, "Zebra quantum is.", "--json"))
    assert likely["perplexity"] < 3 < 50 < unlikely["perplexity"]
