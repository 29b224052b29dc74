"""The frame around the views: the texts, the navigation, the address, language and theme."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Served, open_in
from tests.browser.tools import OpenPage, settle, state, type_text

MODELS = ("stories", "en-zh", "mlm-en", "ner-en")
HOSTILE = "\u202e😀</script><img src=x onerror=alert()>"


def test_the_header_describes_the_model(visit: OpenPage, served: Any) -> None:
    page = visit("en-zh")
    facts = served("en-zh").subjects[0].facts
    assert page.locator(".model-name").inner_text() == "en-zh"
    layers = f"{facts.encoder.layers} + {facts.decoder.layers} layers"
    assert page.locator(".model-facts").inner_text() == (
        f"{layers} · {facts.decoder.attention.heads} heads · width {facts.width}"
    )
    assert "parity" in page.locator(".badge").inner_text()
    assert "Attention is not explanation" in page.locator("footer").inner_text()


@pytest.mark.slow
def test_what_parity_means_is_said_on_request(open_page: OpenPage) -> None:
    page = open_page("en-zh")
    assert not page.locator(".notice").is_visible()
    page.locator(".badge").click()
    assert "Hugging Face reference" in page.locator(".notice").inner_text()
    page.locator("[role=status]", has_text="Hugging Face reference").wait_for(state="attached")  # at the next frame


@pytest.mark.slow
def test_a_copied_link_is_said_to_be_copied_and_where_it_works(open_page: OpenPage) -> None:
    page = open_page("stories", "view=heads&layer=2", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.locator(".notice").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    notice = page.locator(".notice").inner_text()
    assert "Link copied" in notice
    assert "glassformer view stories --export" in notice  # for those who cannot reach this machine


@pytest.mark.slow
def test_a_view_says_what_it_is_for_before_it_is_opened(open_page: OpenPage) -> None:
    page = open_page("stories")
    assert "parameters, memory, FLOPs" in page.locator("nav.views [data-view=flow]").get_attribute("title")


def test_typed_text_is_counted_and_kept_in_the_address(visit: OpenPage, served: Any) -> None:
    subject = served("stories").subjects[0]
    page = visit("stories")
    text = "The dog & the cat = friends # 100%"
    page.locator("textarea[name=text]").fill(text)
    page.wait_for_timeout(600)  # without Enter
    settle(page)
    assert state(page)["text"] == text
    count = len(subject.tokenizer.encode(text, special=False))
    assert page.locator(".token-count").inner_text() in (f"{count} tokens", f"{count + 1} tokens")
    page.reload()
    settle(page)
    assert page.locator("textarea[name=text]").input_value() == text


def test_what_was_typed_last_stays(visit: OpenPage) -> None:
    page = visit("stories")
    for text in ("A dog", "A cat"):
        page.locator("textarea[name=text]").fill(text)
        page.locator("textarea[name=text]").press("Enter")
        page.get_by_role("radio", name="中文").click()  # draws the first field anew
    page.wait_for_timeout(600)  # longer than the page waits for more typing
    settle(page)
    assert (page.locator("textarea[name=text]").input_value(), state(page)["text"]) == ("A cat", "A cat")


def test_hostile_text_stays_text(visit: OpenPage) -> None:
    page = visit("stories", "view=heads")
    title = page.title()
    type_text(page, HOSTILE)
    joined = "".join(page.locator(".board-token.query:not(:has(.special))").all_inner_texts())
    assert "</script>" in joined.replace("·", "")
    assert "\u202e" not in joined  # a mark that would turn the rest of the line around
    assert page.locator("main img").count() == 0
    assert page.title() == title


@pytest.mark.slow
def test_a_refused_text_dims_what_is_shown_of_another(open_page: OpenPage) -> None:
    """No error is in the console: a reader may type anything. ``open_page`` checks that."""
    page = open_page("stories", "view=heads")
    view, count = page.locator("main section.view"), page.locator(".token-count")
    before = count.inner_text()
    type_text(page, "dog " * 2000)
    assert "and this model reads up to 512" in page.locator(".error-text").inner_text()
    assert view.evaluate("section => [section.inert, getComputedStyle(section).opacity]") == [True, "0.28"]
    assert count.inner_text() == ""
    page.goto(f"{page.url}&lang=zh")
    settle(page)
    assert "这个模型最多读 512 个" in page.locator(".error-text").inner_text()
    assert view.evaluate("section => section.inert")
    type_text(page, "Once upon a time, there was a little girl named Lily.")
    assert not page.locator(".error-text").is_visible()
    assert view.evaluate("section => [section.inert, getComputedStyle(section).opacity]") == [False, "1"]
    assert count.inner_text().split()[0] == before.split()[0]
    type_text(page, "")  # a decoder reads at least the beginning of a text
    assert not page.locator(".error-text").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("view", ["heads", "predict"])
def test_an_empty_text_is_a_hint_and_no_error(open_page: OpenPage, view: str) -> None:
    page = open_page("ner-en", f"view={view}")
    type_text(page, "")
    assert page.locator(".error-text").inner_text() == "Nothing to read yet: type a text above, or choose an example."
    assert page.locator(".error.hint").is_visible()
    assert page.locator("main section.view").evaluate("section => section.inert")
    type_text(page, "Marie Curie")
    assert not page.locator(".error").is_visible()


@pytest.mark.slow
def test_the_address_of_another_model_shows_all_its_heads(open_page: OpenPage) -> None:
    page = open_page(("mlm-en", "stories"), "view=heads")
    assert page.locator(".swatch").count() == 6
    for model, heads in ((1, 8), (0, 6)):
        page.evaluate(f"location.hash = 'view=heads&model={model}'")
        settle(page)
        assert page.locator(".swatch").count() == heads
        assert page.locator(".swatch[aria-pressed=true]").count() == heads
        assert "heads" not in state(page)


@pytest.mark.slow
def test_a_corrected_address_leaves_no_error(browser: Any, served: Callable[..., Served]) -> None:
    """In a browser context of its own: the refused query is an error in the console."""
    opened = open_in(browser, served("stories"), "view=heads", {})
    page, line = opened.page, opened.page.locator(".error-text")
    for reload, shown in ((False, line), (True, page.locator("#app > .error"))):
        page.evaluate("location.hash = 'view=heads&model=9'")
        if reload:
            page.reload()
        shown.get_by_text("there is no model 9").wait_for()
        page.evaluate("location.hash = 'view=heads&model=0'")
        page.wait_for_selector("main > *")
        settle(page)
        assert not page.locator(".error").is_visible()
        assert page.locator(".swatch").count() == 8
    opened.close()


@pytest.mark.slow
def test_sizes_that_change_while_observed_are_no_error(open_page: OpenPage) -> None:
    page = open_page("stories")
    page.evaluate("""() => new Promise((done) => {
      const box = document.body.appendChild(document.createElement("div"));
      let height = 1;
      new ResizeObserver(() => { height += 1; if (height < 9) box.style.height = `${height}px`; }).observe(box);
      addEventListener("error", (event) => { window.seen = event.message; });
      setTimeout(done, 300);
    })""")
    assert "ResizeObserver loop" in page.evaluate("window.seen")
    assert not page.locator(".error").is_visible()
    page.evaluate("dispatchEvent(new ErrorEvent('error', { message: 'ResizeObserver is broken' }))")
    assert page.locator(".error-text").inner_text() == "ResizeObserver is broken"


def test_language_and_theme(visit: OpenPage) -> None:
    page = visit("stories", "view=heads&layer=1")
    page.get_by_role("radio", name="中文").click()
    settle(page)
    assert page.locator("h1").inner_text() == "注意力头"
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    light = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    page.get_by_role("radio", name="深色").click()
    settle(page)
    assert page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor") != light
    assert {"lang": "zh", "theme": "dark", "layer": "1"}.items() <= state(page).items()


@pytest.mark.slow
def test_a_browser_that_asks_for_chinese_gets_chinese(open_page: OpenPage) -> None:
    page = open_page("stories", "", locale="zh-CN")
    assert page.locator("h1").inner_text() == "注意力头"
    assert "lang" not in state(page)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("width", [380, 1280])
def test_every_view_fits_the_window(open_page: OpenPage, model: str, width: int) -> None:
    page = open_page(model, "", viewport={"width": width, "height": 800})
    for name in page.locator("nav.views button").evaluate_all("all => all.map(one => one.dataset.view)"):
        page.locator(f"nav.views button[data-view={name}]").click()
        settle(page)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} pixels wide"
        assert page.locator("main section.view").inner_text().strip(), f"{name} is empty"


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_control_has_a_name(open_page: OpenPage, model: str) -> None:
    page = open_page(model)
    nameless = """() => [...document.querySelectorAll("button, input, select, textarea")]
      .filter(one => one.checkVisibility() && !one.getAttribute("aria-label"))
      .filter(one => !one.textContent.trim() && !one.labels?.length)
      .map(one => one.outerHTML.slice(0, 120))"""
    for name in page.locator("nav.views button").evaluate_all("all => all.map(one => one.dataset.view)"):
        page.locator(f"nav.views button[data-view={name}]").click()
        settle(page)
        assert page.evaluate(nameless) == [], name
