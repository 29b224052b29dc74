"""Scores: the reference's loss, windows written out by hand, and nothing that depends on batches."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from glassformer import load
from glassformer.tasks.score import score, score_file, score_masked, summarise
from tests.helpers import some_at_once
from tests.tasks.models import LONGEST, TEXTS, make

LONG = " ".join(TEXTS * 3)  # far longer than the model
SHORT = [text for text in TEXTS if text != TEXTS[3]]


@pytest.fixture(scope="module", params=["bytes", "bytes with bos"])
def both(request, tmp_path_factory):
    return make(tmp_path_factory.mktemp("score"), "GPT2LMHeadModel", request.param)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return make(tmp_path_factory.mktemp("pairs"), "BartForConditionalGeneration", "angled", pad_token_id=1)


def by_hand(theirs, ids: list[int], window: int, stride: int) -> list[float]:
    """The log-probability of every id but the first, each from a call of its own with no other id predicted."""
    logs, reached, context = [], min(window, len(ids)), 0
    for index in range(1, len(ids)):
        while index >= reached:
            reached = min(reached + stride, len(ids))
            context = max(0, reached - window)
        with torch.no_grad():
            logits = theirs(torch.tensor([ids[context:index]])).logits[0, -1]
        logs.append(float(logits.log_softmax(-1)[ids[index]]))
    return logs


def test_short_texts_have_the_references_loss(both) -> None:
    loaded, theirs = both
    for text, result in zip(SHORT, score(loaded, SHORT), strict=True):
        ids = torch.tensor([loaded.tokenizer.encode(text)])
        with torch.no_grad():
            loss = float(theirs(ids, labels=ids).loss)  # in float32, whatever the model is in
        assert result.total.predicted == ids.shape[1] - 1
        assert result.total.log_prob / result.total.predicted == pytest.approx(-loss, abs=2e-6)
        assert result.total.perplexity == pytest.approx(math.exp(loss), rel=2e-6)


def test_a_single_token_is_predicted_only_after_another(both) -> None:
    loaded, _ = both
    (result,) = score(loaded, ["the"])
    inside = loaded.tokenizer.encode("the", special=False)
    assert len(inside) == 1
    if len(result.tokens) == 1:
        assert (result.total.predicted, result.total.bytes) == (0, 0)
        assert (result.total.perplexity, result.total.bits_per_byte) == (None, None)
    else:
        assert (result.total.predicted, result.total.bytes) == (1, 3)
    assert summarise([result, *score(loaded, SHORT)]).perplexity is not None


@pytest.mark.parametrize(
    ("window", "stride"),
    some_at_once([(None, None), (12, 5), (12, 1), (12, 11), (2, 1), (40, 7)], {(None, None), (12, 5)}.__contains__),
)
def test_windows_equal_the_loop_written_out(both, window, stride) -> None:
    loaded, theirs = both
    ids = loaded.tokenizer.encode(LONG)
    assert len(ids) > 3 * LONGEST
    (result,) = score(loaded, [LONG], window=window, stride=stride)
    expected = by_hand(theirs, ids, window or LONGEST, stride or LONGEST // 2)
    assert result.tokens[0].log_prob is None
    assert [token.id for token in result.tokens] == ids
    assert [token.log_prob for token in result.tokens[1:]] == pytest.approx(expected, abs=1e-9)
    assert result.total.predicted == len(ids) - 1
    assert result.total.log_prob == pytest.approx(math.fsum(expected), abs=1e-9)


def test_batches_and_order_do_not_matter(both) -> None:
    loaded, _ = both
    texts = [*TEXTS, LONG]
    single = score(loaded, texts, batch_size=1, stride=9)
    for size in (8, 16):
        for other in (
            score(loaded, texts, batch_size=size, stride=9),
            score(loaded, texts[::-1], batch_size=size, stride=9)[::-1],
        ):
            for a, b in zip(single, other, strict=True):
                assert (a.text, a.total.predicted, a.total.bytes) == (b.text, b.total.predicted, b.total.bytes)
                assert a.total.log_prob == pytest.approx(b.total.log_prob, abs=1e-9)
            assert summarise(single).perplexity == pytest.approx(summarise(other).perplexity, rel=1e-12)


def test_all_texts_together_average_over_tokens_not_over_texts(both) -> None:
    loaded, theirs = both
    together = summarise(score(loaded, SHORT))
    losses, count = 0.0, 0
    for text in SHORT:
        ids = torch.tensor(loaded.tokenizer.encode(text))
        with torch.no_grad():
            losses += float(cross_entropy(theirs(ids[None]).logits[0, :-1], ids[1:], reduction="sum"))
        count += len(ids) - 1
    assert together.predicted == count
    assert together.perplexity == pytest.approx(math.exp(losses / count), rel=1e-9)
    means = [s.total.log_prob / s.total.predicted for s in score(loaded, SHORT) if s.total.predicted]
    assert together.perplexity != pytest.approx(math.exp(-sum(means) / len(means)), rel=1e-3)  # the wrong average


def test_characters_and_bytes(both) -> None:
    loaded, _ = both
    text = "日本語 and 😀, déjà vu!"
    (result,) = score(loaded, [text])
    framed = loaded.tokenizer.bos is not None and loaded.tokenizer.encode(text)[0] == loaded.tokenizer.bos
    inside = result.tokens[1:] if framed else result.tokens
    assert inside[-1].end == len(text)
    covered = {index for token in inside for index in range(token.start, token.end)}
    assert covered | {n for n, character in enumerate(text) if character == " "} == set(range(len(text)))
    emoji = [token for token in inside if "😀" in text[token.start : token.end]]
    assert len(emoji) > 1  # the bytes of one character, each token with the whole of it
    assert result.total.bytes == len(text.encode())  # without BOS the first token is a part of 日, the rest predicted
    assert result.total.bits_per_byte == pytest.approx(-result.total.log_prob / math.log(2) / result.total.bytes)
    (plain,) = score(loaded, ["Python has lists"])
    assert plain.total.bytes == 16 - (0 if framed else plain.tokens[0].end)


def test_a_file_is_one_stream(both, tmp_path) -> None:
    loaded, theirs = both
    path = tmp_path / "text.txt"
    path.write_bytes((LONG + "\r\nend\n").encode())
    ids = loaded.tokenizer.encode(LONG + "\r\nend\n")
    expected = math.fsum(by_hand(theirs, ids, 16, 8))
    for size in (1, 8):
        result = score_file(loaded, path, window=16, stride=8, batch_size=size)
        assert result.predicted == len(ids) - 1
        assert result.log_prob == pytest.approx(expected, abs=1e-9)


def test_logits_are_never_held_for_more_than_a_window(both, tmp_path, monkeypatch) -> None:
    loaded, _ = both
    path = tmp_path / "text.txt"
    path.write_text(LONG, encoding="utf-8")
    sizes, answer = [], loaded.model.apply_head

    def watched(hidden, mask=None):
        sizes.append(hidden.shape[0] * hidden.shape[1])
        return answer(hidden, mask)

    monkeypatch.setattr(loaded.model, "apply_head", watched)
    total = score_file(loaded, path, window=10, stride=4, batch_size=8)
    assert max(sizes) < 10
    assert sum(sizes) == total.predicted


def test_pairs_have_the_references_loss(translator) -> None:
    loaded, theirs = translator
    pairs = list(zip(SHORT, SHORT[::-1], strict=True))
    result = score(loaded, pairs, batch_size=3)
    for (source, text), single in zip(pairs, result, strict=True):
        inputs, labels = (torch.tensor([loaded.tokenizer.encode(part)]) for part in (source, text))
        with torch.no_grad():
            loss = float(theirs(inputs, labels=labels).loss)
        assert single.total.predicted == labels.shape[1]
        assert single.total.log_prob == pytest.approx(-loss * labels.shape[1], abs=1e-8)
        assert (single.source, single.text) == (source, text)
    for a, b in zip(result, score(loaded, pairs[::-1], batch_size=1)[::-1], strict=True):
        assert a.total.log_prob == pytest.approx(b.total.log_prob, abs=1e-9)


def test_pseudo_log_likelihood_masks_each_token_in_turn(tmp_path) -> None:
    loaded, theirs = make(tmp_path, "BertForMaskedLM", "words")
    texts = ["The value of it.", "日本 😀"]
    for text, result in zip(texts, score_masked(loaded, texts, batch_size=3), strict=True):
        ids = torch.tensor(loaded.tokenizer.encode(text))
        expected = []
        for index in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[index] = loaded.tokenizer.mask
            with torch.no_grad():
                expected.append(float(theirs(masked[None]).logits[0, index].log_softmax(-1)[ids[index]]))
        assert [t.log_prob for t in result.tokens] == [None, *(pytest.approx(e, abs=1e-9) for e in expected), None]
        assert result.total.predicted == len(expected)
        assert result.total.bytes == len(text.encode())
    with pytest.raises(ValueError, match=r"score it with score_masked\.$"):
        score(loaded, texts)
    with pytest.raises(ValueError, match="takes 40"):
        score_masked(loaded, ["a " * 60])


def test_half_precision_is_scored_in_float32(both) -> None:
    loaded, _ = both
    half = load(loaded.path, dtype=torch.bfloat16)
    assert {token.log_prob for token in score(half, TEXTS)[0].tokens[1:]} != set()
    for token in score(half, TEXTS)[0].tokens[1:]:
        assert float(torch.tensor(token.log_prob).bfloat16()) != token.log_prob


def test_errors(both, translator) -> None:
    loaded, _ = both
    with pytest.raises(ValueError, match="single texts"):
        score(loaded, ["a", ("a", "b")])
    with pytest.raises(ValueError, match="pairs"):
        score(translator[0], ["a"])
    with pytest.raises(ValueError, match="for decoders"):
        score(translator[0], [("a", "b")], window=5)
    with pytest.raises(ValueError, match="source 1 has"):
        score(translator[0], [("a", "b"), ("a b c " * 40, "b")])
    with pytest.raises(ValueError, match="text 0 has"):
        score(translator[0], [("a", "a b c " * 40)])
    with pytest.raises(ValueError, match="text 1 gives no token"):
        score(loaded, ["a b", ""])
    with pytest.raises(ValueError, match="text 0 gives no token"):
        score(loaded, "")
    with pytest.raises(ValueError, match="scoring a whole file needs a decoder"):
        score_file(translator[0], "nowhere")
