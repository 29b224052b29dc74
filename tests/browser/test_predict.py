"""Predict: filters in the page against those of generation, and every part against the library's own answers."""

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.generation import filters as rules
from glassformer.generation.filters import Filters
from glassformer.generation.settings import GenerationSettings
from glassformer.inspect.intervene import ablate
from glassformer.viewer.inputs import Input
from tests.browser.conftest import OpenPage, Served
from tests.browser.reference import decoder_ids, logits, number, tiny_folder
from tests.browser.tools import save, settle, state
from tests.page.tools import NO_NODE, ROOT, node

TEXT = "Once upon a time there was a"
LONG = pytest.mark.slow
SCRIPT = """
import { readFileSync } from "node:fs";
import { probabilities, shape } from "%s";
const cases = JSON.parse(readFileSync(0, "utf8"));
const results = cases.map(({ logits, ...filters }) => {
  const scores = shape(Float32Array.from(logits), filters);
  return { left: Array.from(scores, (score) => score !== -Infinity), probs: Array.from(probabilities(scores)) };
});
process.stdout.write(JSON.stringify(results));
"""


def cases() -> list[tuple[list[float], dict[str, Any]]]:
    """Logits with and without ties, each with many settings of the filters."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        (torch.randn(50, generator=generator) * 3).tolist(),
        torch.randint(-3, 3, (40,), generator=generator).float().tolist(),  # many equals
        [0.0, 0.0, 0.0, 0.0],
        [12.0, -30.0, 11.5, 3.25, 11.5],
    ]
    settings: list[dict[str, Any]] = [{}]
    settings += [{"temperature": degree} for degree in (0.0, 0.3, 0.7, 1.6)]
    settings += [{"top_k": k} for k in (1, 2, 3, 7, 100)]
    settings += [{"top_p": p} for p in (0.05, 0.3, 0.9, 0.999)]
    settings += [{"min_p": p} for p in (0.01, 0.2, 0.9)]
    settings += [{"temperature": 0.8, "top_k": 9, "top_p": 0.7, "min_p": 0.05}, {"temperature": 1.4, "top_p": 0.5}]
    return [(row, setting) for row in rows for setting in settings]


def test_filters_equal_those_of_generation() -> None:
    program = node()
    if program is None:
        pytest.skip(NO_NODE)
    path = ROOT / "glassformer/viewer/static/js/views/predict_filters.js"
    names = {"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP"}
    questions = [
        {
            "logits": row,
            "temperature": 1,
            **{js: settings.get(py) for py, js in names.items() if py != "temperature" or py in settings},
        }
        for row, settings in cases()
    ]
    command = [
        program,
        "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON",
        "--input-type=module",
        "-e",
        SCRIPT % path.as_uri(),
    ]
    answered = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=True)
    for (row, settings), found in zip(cases(), json.loads(answered.stdout), strict=True):
        scores = Filters(GenerationSettings(**{"temperature": 1.0, **settings}), len(row)).warp(torch.tensor([row]))
        assert found["left"] == (scores[0] != -torch.inf).tolist(), (row, settings)
        assert found["probs"] == pytest.approx(scores[0].double().softmax(-1).tolist(), abs=1e-6), (row, settings)


def shares(page: Any) -> dict[int, tuple[float, float]]:
    """Ids with their probability before and after, as the bars say."""
    found = {}
    for bar in page.locator(".predict-bars li").all():
        before, _, after = bar.locator(".predict-number").text_content().partition("→")
        read = [0.0 if "<" in text else number(text) for text in (before, after or before)]
        found[int(bar.get_attribute("data-id"))] = (read[0], read[1])
    return found


def test_sliders_filter_the_models_distribution(visit: OpenPage, served: Callable[..., Served]) -> None:
    page = visit("stories", f"view=predict&text={TEXT}")
    scores = logits(served("stories").subjects[0].loaded, TEXT)[-1:]
    for name, value in (("t", "0.7"), ("k", "12"), ("p", "0.8")):
        page.locator(f"input[name=filter-{name}]").fill(value)
    page.wait_for_timeout(300)
    settle(page)
    kept = rules.top_p(rules.top_k(rules.temperature(scores, 0.7), 12), 0.8)[0]
    assert page.locator("[data-left]").get_attribute("data-left") == str(int((kept != -torch.inf).sum()))
    before, after = scores[0].softmax(-1), kept.softmax(-1)
    for token, (shown_before, shown_after) in shares(page).items():
        assert shown_before == pytest.approx(float(before[token]), abs=1e-3)
        assert shown_after == pytest.approx(float(after[token]), abs=1e-3)
    assert {key: state(page)[f"x.predict.{key}"] for key in "tkp"} == {"t": "0.7", "k": "12", "p": "0.8"}
    # A click on a word continues the text with it.
    word = page.locator(".predict-pick").first
    word.click()
    settle(page)
    assert state(page)["text"].startswith(TEXT + " ")


def test_a_head_is_switched_off_by_a_click(visit: OpenPage, served: Callable[..., Served]) -> None:
    loaded = served("stories").subjects[0].loaded
    page = visit("stories", f"view=predict&text={TEXT}&x.predict.tab=ablate")
    page.locator('[data-head="decoder.attention-1-2"]').click()
    settle(page)
    assert state(page)["ablate"] == "decoder.attention-1-2"
    # Without the head: its columns of the output matrix are zero.
    weight = loaded.model.decoder.blocks[1].attention.o.weight
    width = loaded.config.decoder.attention.head_dim
    before = logits(loaded, TEXT)[-1].double().log_softmax(-1)
    kept = weight.data.clone()
    try:
        with torch.no_grad():
            weight[:, 2 * width : 3 * width] = 0
        after = logits(loaded, TEXT)[-1].double().log_softmax(-1)
    finally:
        weight.data.copy_(kept)
    for token, shown in shares(page).items():
        assert shown == pytest.approx((float(before[token].exp()), float(after[token].exp())), abs=1e-3)
    bits = float((before.exp() * (before - after)).sum()) / torch.log(torch.tensor(2.0)).item()
    assert float(page.locator("[data-part=change]").get_attribute("data-kl")) == pytest.approx(bits, rel=1e-2, abs=1e-4)
    assert f"KL divergence {bits:.3f}"[:-1] in page.locator("[data-part=change]").text_content()


def test_generation_step_by_step(visit: OpenPage, served: Callable[..., Served]) -> None:
    loaded = served("stories").subjects[0].loaded
    page = visit("stories", f"view=predict&text={TEXT}&x.predict.tab=generate&x.predict.n=8&layer=1&heads=3")
    written = loaded.generate(TEXT, max_new_tokens=8, temperature=0.0, beam_size=1).written
    steps, end = page.locator(".predict-made"), page.locator("button", has_text="To the end")
    assert steps.count() == 1, "it opens on the first step"
    end.click()
    assert steps.count() == len(written.ids)
    assert end.is_disabled()
    # The attention of a step is the row of the whole text's pass.
    page.locator("button", has_text="Start again").click()
    assert steps.count() == 0
    for _ in range(3):
        page.locator("button", has_text="Next step").click()
    assert steps.count() == 3
    from glassformer.inspect.record import record

    whole = torch.cat((decoder_ids(loaded, TEXT), torch.tensor([written.ids])), 1)
    with torch.inference_mode(), record(loaded.model, "decoder.blocks.1.attention.weights") as trace:
        loaded.model(whole)
    position = decoder_ids(loaded, TEXT).shape[1] + 1
    row = trace["decoder.blocks.1.attention.weights"][0, 3, position, : position + 1]
    shown = page.locator(".predict-key").evaluate_all("all => all.map((key) => Number(key.dataset.weight))")
    assert shown == pytest.approx(row.tolist(), abs=2e-3)
    # Sampling: the same seed gives the same text, in the page and out of it.
    page.locator("[data-value=sample]").click()
    page.locator("#predict-seed").fill("7")
    page.locator("#predict-seed").press("Enter")
    settle(page)
    drawn = loaded.generate(TEXT, max_new_tokens=8, temperature=1.0, seed=7, beam_size=1).written
    assert steps.count() == 3, "other settings do not move the reader"
    end.click()
    pieces = steps.all_text_contents()
    assert len(pieces) == len(drawn.ids)
    assert "".join(pieces).replace("·", " ") == loaded.tokenizer.decode(drawn.ids)


@LONG
def test_the_lens_ends_in_the_prediction(open_page: OpenPage, served: Callable[..., Served]) -> None:
    page = open_page("stories", f"view=predict&text={TEXT}&x.predict.tab=lens")
    loaded = served("stories").subjects[0].loaded
    best = logits(loaded, TEXT)[-1].softmax(-1)
    last = page.locator("td.chosen").last
    word = loaded.tokenizer.decode([int(best.argmax())]).strip()
    assert f": ·{word} {100 * float(best.max()):.1f} %" in last.get_attribute("aria-label")
    last.focus()
    last.press("ArrowUp")
    assert "layer 3" in page.locator("[data-part=lens-detail]").text_content()


@LONG
def test_blanks_are_filled(open_page: OpenPage, served: Callable[..., Served]) -> None:
    page = open_page("mlm-en", "view=predict&text=There was a big girl named Lily.")
    assert page.locator("[data-part=hint]").count() == 1
    page.locator(".predict-word", has_text="girl").click()
    settle(page)
    text = state(page)["text"]
    assert text == "There was a big [MASK] named Lily."
    (filled,) = served("mlm-en").subjects[0].loaded.fill([text], top=10)
    shown = shares(page)
    assert list(shown) == [guess.id for guess in filled.blanks[0].guesses]
    assert [share for share, _ in shown.values()] == pytest.approx(
        [guess.probability for guess in filled.blanks[0].guesses], abs=1e-3
    )


@LONG
def test_words_are_labelled(open_page: OpenPage, served: Callable[..., Served]) -> None:
    text = "Marie Curie was born in Warsaw."
    page = open_page("ner-en", f"view=predict&text={text}")
    (tagged,) = served("ner-en").subjects[0].loaded.tag([text])
    labels = page.locator(".predict-tagged").evaluate_all("all => all.map((word) => word.dataset.label)")
    assert labels == [word.label for word in tagged.words]
    page.locator("[data-value=ablate]").click()
    settle(page)
    page.locator('[data-head="encoder.attention-0-0"]').click()
    settle(page)
    assert page.locator("[data-part=change] li").count() == len(tagged.words)


@LONG
@pytest.mark.parametrize("model", ["stories", "en-zh", "mlm-en", "ner-en"])
def test_every_part_of_every_family(visit: OpenPage, model: str, tmp_path: Path) -> None:
    page = visit(model, "view=predict")
    tabs = (
        page.locator(".view-predict .segmented")
        .first.locator("button")
        .evaluate_all("all => all.map((tab) => tab.dataset.value)")
    )
    for tab in tabs:
        narrow = visit(
            model, f"view=predict&x.predict.tab={tab}&lang=zh&theme=dark", viewport={"width": 390, "height": 844}
        )
        assert narrow.evaluate("document.documentElement.scrollWidth") <= 390, tab
        page.locator(f".view-predict [data-value={tab}]").click()
        settle(page)
        assert page.locator(".error:visible").count() == 0
        assert save(page, "svg", tmp_path).stat().st_size > 500


@LONG
def test_layer_and_head_are_offered_where_they_matter(open_page: OpenPage) -> None:
    page = open_page("en-zh", "view=predict")
    offered = {}
    for name in ("Next token", "Generate", "Layer by layer", "Switch heads off"):
        page.get_by_role("radio", name=name).click()
        settle(page)
        offered[name] = page.locator(".choices label, .choices .label").all_inner_texts()
    assert offered == {
        "Next token": [],
        "Generate": ["Attention", "Layer", "Head"],
        "Layer by layer": [],
        "Switch heads off": ["Attention", "Layer"],
    }
    assert "kind of attention is chosen above" in page.inner_text("main")
    assert "chosen above" not in open_page("stories", "view=predict&x.predict.tab=ablate").inner_text("main")


@LONG
def test_part_of_a_character_cannot_be_appended(open_page: OpenPage, served: Callable[..., Served]) -> None:
    subject = served("en-zh").subjects[0]
    last = len(subject.sequences(Input("I love you.")).decoder) - 1
    page = open_page("en-zh", f"view=predict&text=I love you.&kind=decoder&pins={last}")
    ids = "rows => rows.map((row) => Number(row.dataset.id))"
    numbers = page.locator(".predict-bars li").evaluate_all(ids)
    picks = page.locator(".predict-bars li:has(.predict-pick)").evaluate_all(ids)
    whole = [n for n in numbers if n not in subject.special and "\ufffd" not in subject.tokenizer.decode([n])]
    assert picks == whole
    assert {n for n in numbers if n not in subject.special} > set(whole)  # this text has such a token


SPLIT = "I have a pet hamster and a parrot."  # whose translation has characters of two tokens each


@LONG
def test_a_target_of_split_characters_is_read_as_it_was_written(
    open_page: OpenPage, served: Callable[..., Served]
) -> None:
    subject = served("en-zh").subjects[0]
    read = subject.sequences(Input(SPLIT))
    assert any("\ufffd" in subject.tokenizer.decode([token]) for token in read.decoder)
    page = open_page("en-zh", f"view=predict&text={SPLIT}&x.predict.tab=ablate&kind=cross&pins={len(read.decoder) - 1}")
    assert page.locator("textarea[name=target]").get_attribute("placeholder") == subject.tokenizer.decode(
        [token for token in read.decoder if token not in subject.special]
    )
    page.locator('[data-head="decoder.cross-2-1"]').click()
    settle(page)
    # Without the head, but with the target that the whole model has written.
    model = subject.model
    rows = {"encoder": torch.tensor([read.encoder]), "decoder": torch.tensor([read.decoder])}
    with torch.inference_mode():
        before = model(rows["encoder"], target=rows["decoder"])[0, -1].double().log_softmax(-1)
        with ablate(model, {"decoder.blocks.2.cross": [1]}):
            after = model(rows["encoder"], target=rows["decoder"])[0, -1].double().log_softmax(-1)
    bits = float((before.exp() * (before - after)).sum() / math.log(2))
    assert float(page.locator("[data-part=change]").get_attribute("data-kl")) == pytest.approx(bits, rel=1e-2, abs=1e-5)
    assert page.locator(".predict-tokens button").count() == len(read.decoder)


@LONG
def test_appending_to_split_characters_keeps_the_target(open_page: OpenPage, served: Callable[..., Served]) -> None:
    subject = served("en-zh").subjects[0]
    read = subject.sequences(Input(SPLIT))
    split = [at for at, token in enumerate(read.decoder) if "\ufffd" in subject.tokenizer.decode([token])]
    at = split[-1]  # the last part of a character
    page = open_page("en-zh", f"view=predict&text={SPLIT}&kind=cross&pins={at}")
    row = page.locator(".predict-bars li:has(.predict-pick)").first
    token = int(row.get_attribute("data-id"))
    row.locator(".predict-pick").click()
    settle(page)
    written = [number for number in (*read.decoder[: at + 1], token) if number not in subject.special]
    assert state(page)["target"] == subject.tokenizer.decode(written).replace("\ufffd", "")
    assert "⟨" not in state(page)["target"]


@LONG
def test_a_word_after_an_earlier_token_replaces_the_rest(open_page: OpenPage) -> None:
    page = open_page("stories", "view=predict&text=Once upon a time there was a big dog.&pins=4")
    word = page.locator(".predict-bars li:has(.predict-pick)").first
    name_text = word.locator(".predict-name").text_content()
    word.locator(".predict-pick").click()
    settle(page)
    text = state(page)["text"]
    assert text.endswith(name_text.replace("·", " "))
    assert "dog" not in text


@LONG
def test_the_row_of_a_step_names_the_layer_and_head_that_it_shows(open_page: OpenPage, tmp_path: Path) -> None:
    folder = tiny_folder("deep_encoder", tmp_path)  # 4 layers of 8 heads; its decoder has 2 of 4
    page = open_page(folder, "view=predict&text=I love you.&x.predict.tab=generate&kind=encoder&layer=3&heads=7")
    asked = []
    page.on("request", lambda request: asked.append(request.post_data_json) if "api/generate" in request.url else None)
    page.locator("input[type=range]").first.fill("3")
    page.wait_for_timeout(300)
    settle(page)
    assert [(each["kind"], each["layer"], each["head"]) for each in asked] == [("decoder", 1, 3)]
    title = page.locator("h2:has(+ .predict-keys)").text_content().lower()
    assert "layer 1" in title
    assert "head 3" in title
