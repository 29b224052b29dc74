"""Learn: curves, tables and samples of runs, and a run that goes on while the page is open."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from glassformer.hub import load
from glassformer.recipes.files import read_recipe, write_recipe
from glassformer.training.logging.sinks import RunLog
from glassformer.viewer.contents import open_contents
from tests.browser.conftest import OpenPage, Problems, serve_contents, start_server
from tests.browser.tools import save, settle, state
from tests.training.small_sessions import trained


def write_run(folder: Path, rate: str, losses: list[float]) -> RunLog:
    """A run as the trainer would log it: a validation and a sample every fourth step. The log stays open."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(write_recipe(read_recipe("toy", [f"optimizer.lr={rate}", "run.steps=20"])))
    log = RunLog(folder / "log.jsonl")
    for step, loss in enumerate(losses, start=1):
        write_step(log, step, loss)
    return log


def write_step(log: RunLog, step: int, loss: float) -> None:
    values = {"loss": loss, "lr": 0.01, "grad_norm": 1.0 / step, "tokens": 100, "tokens_seen": 100 * step}
    log.write("step", step, values, {"seconds": 0.5, "memory": 10**8})
    if step % 4 == 0:
        log.write("validation", step, {"loss": loss + 0.1, "best": True})
        log.write("sample", step, {"number": 1, "text": f"<b>sample</b> of step {step}"})


@pytest.fixture
def learn(browser: Any, tmp_path: Path) -> Iterator[tuple[Callable[..., Any], dict[str, RunLog]]]:
    """Opens a page on two runs; their logs can be written on."""
    logs = {
        "plain": write_run(tmp_path / "plain", "5e-3", [4.0 / step for step in range(1, 11)]),
        "slow": write_run(tmp_path / "slow", "1e-4", [4.0 - step / 10 for step in range(1, 8)]),
    }
    server = start_server((), runs=[tmp_path / name for name in logs])
    problems, contexts = Problems(server.address), []

    def open_one(address: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        problems.watch(page)
        page.goto(f"{server.address}#view=learn{address}")
        page.wait_for_selector(".view-learn table")
        settle(page)
        return page

    yield open_one, logs
    for context in contexts:
        context.close()
    server.stop()
    for log in logs.values():
        log.close()
    assert problems.found == []


def cells(page: Any, run: str) -> list[str]:
    return [str(text) for text in page.locator(f"tr[data-run={run}] td").all_text_contents()]


def test_runs_and_what_comes_in(learn: Any) -> None:
    open_one, logs = learn
    page = open_one()
    assert cells(page, "plain")[1] == "10 of 20"
    assert cells(page, "plain")[2:5] == ["0.4000", "0.6000 at step 8", "200"], "last loss, best validation, tokens/s"
    assert cells(page, "slow")[2] == "3.3000"
    assert page.locator(".learn-sample").text_content() == "<b>sample</b> of step 8", "text stays text"
    differs = page.locator(".view-learn tbody tr", has_text="optimizer.lr").locator("td").all_text_contents()
    assert differs == ["0.005", "0.0001"]
    # Values under the cursor, by the keyboard.
    chart = page.locator(".chart svg").first
    chart.press("Home")
    tip = page.locator(".tip").text_content()
    assert "step 1" in tip
    assert "plain, training: 4.0000" in tip
    # The run goes on.
    write_step(logs["plain"], 11, 0.25)
    write_step(logs["plain"], 12, 0.2)
    page.wait_for_function("() => document.querySelector('tr[data-run=plain]').textContent.includes('12 of 20')")
    assert cells(page, "plain")[2:4] == ["0.2000", "0.3000 at step 12"]
    assert page.locator(".learn-sample").text_content() == "<b>sample</b> of step 12"


@pytest.mark.slow
def test_choices_are_in_the_address(learn: Any, tmp_path: Path) -> None:
    open_one, _ = learn
    page = open_one("&x.learn.smooth=0", accept_downloads=True)
    lines = page.locator(".chart").first.locator("path[fill=none]")
    assert lines.count() == 4, "training and validation of two runs"
    page.get_by_role("button", name="Show slow").click()
    page.get_by_role("radio", name="logarithmic").click()
    page.get_by_role("radio", name="tokens").click()
    settle(page)
    assert (state(page)["x.learn.hidden"], state(page)["x.learn.scale"], state(page)["x.learn.axis"]) == (
        "1",
        "log",
        "tokens",
    )
    assert lines.count() == 2
    chart = page.locator(".chart svg").first
    chart.press("End")
    assert "tokens 1000" in page.locator(".tip").text_content()
    picture = save(page, "svg", tmp_path).read_text()
    assert picture.count("<path") >= 2
    page.reload()
    page.wait_for_selector(".view-learn table")
    settle(page)
    assert lines.count() == 2
    page.get_by_label("Live").uncheck()
    settle(page)
    assert state(page)["x.learn.live"] == "off"


@pytest.mark.slow
def test_a_resumed_run_replaces_its_steps(learn: Any) -> None:
    open_one, logs = learn
    page = open_one(viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    path = logs["plain"].path
    logs["plain"].close()
    logs["plain"] = RunLog(path, after=4)
    write_step(logs["plain"], 5, 0.5)
    page.wait_for_function("() => document.querySelector('tr[data-run=plain]').textContent.includes('5 of 20')")
    assert cells(page, "plain")[2:4] == ["0.5000", "1.1000 at step 4"]


@pytest.mark.slow
def test_without_runs_there_is_no_such_view(open_page: OpenPage) -> None:
    page = open_page("mlm-en")
    assert "Learn" not in page.locator("nav.views button").all_text_contents()


@pytest.fixture(scope="module")
def toy_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page of ``glassformer view RUN``, for a run of the toy recipe."""
    run = tmp_path_factory.mktemp("runs") / "toy"
    trained(read_recipe("toy", ["run.steps=2"]), run)
    contents = open_contents([str(run)], partial(load, dtype="float32"))
    server = serve_contents(contents)
    problems, page = Problems(server.address), browser.new_page(locale="en-GB")
    problems.watch(page)
    page.goto(server.address)
    page.wait_for_selector(".view-learn table")
    settle(page)
    yield page
    page.close()
    server.stop()
    assert problems.found == []


@pytest.mark.slow
def test_a_run_opens_learn_and_its_model_a_text_of_its_own(toy_page: Any) -> None:
    page = toy_page
    assert page.locator("nav.views [aria-current]").inner_text() == "Learn"
    page.locator("nav.views button[data-view=heads]").click()
    settle(page)
    assert page.locator("textarea[name=text]").input_value() == "merci"
    texts = page.locator(".field.examples option").all_inner_texts()[1:]
    assert texts == ["merci", "je suis étudiant"], "no sentences with words that it does not know"
    # A figure about two English sentences says that this vocabulary holds none of their words.
    page.locator("nav.views button[data-view=figures]").click()
    page.locator("[data-figure=flies]").click()
    settle(page)
    assert "This model’s vocabulary holds no word of these texts" in page.locator("[data-part=refusal]").inner_text()
    assert not page.locator(".error").is_visible()
    assert not page.locator(".figure-flies h3").first.is_visible()
    for field, text in zip(
        page.locator(".figure-flies input.compare-text").all(), ("je suis", "suis étudiant"), strict=True
    ):
        field.fill(text)
        field.press("Tab")
        settle(page)
    assert "the two vectors of “suis”" in page.locator(".flies-value").inner_text()
    assert not page.locator("[data-part=refusal]").is_visible()
