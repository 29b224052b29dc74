"""Screenshots of the viewer's page: every view, light and dark, wide and narrow, of the shipped models.

Usage: python docs/screenshots.py FOLDER, for all of them; without arguments, it writes those of the documentation to
docs/images/. Needs Chromium and the extra `dev`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import ARGUMENTS, chromium_path, start_server
from tests.browser.tools import settle

IMAGES = Path(__file__).parent / "images"
MODELS = ("en-zh", "stories", "mlm-en")
VIEWS = ("tour", "flow", "heads", "grid", "neuron", "predict", "beams", "masks", "positions", "compare", "figures")
WIDTHS = (1280, 390)  # pixels
# The pictures of README and guides: file, model, state of the page, width.
CHOSEN = (
    ("viewer-flow.png", "en-zh", "view=flow&theme=light&lang=en&text=The%20weather%20is%20nice%20today.", 1280),
    (
        "viewer-heads.png",
        "en-zh",
        "view=heads&kind=cross&layer=2&theme=light&lang=en&text=Where%20is%20the%20station?",
        1280,
    ),
    ("viewer-flow-zh.png", "en-zh", "view=flow&theme=light&lang=zh&text=The%20weather%20is%20nice%20today.", 1280),
    (
        "viewer-predict.png",
        "stories",
        "view=predict&theme=dark&lang=en&text=Once%20upon%20a%20time%20there%20was%20a&x.predict.p=0.8",
        960,
    ),
    ("viewer-beams.png", "en-zh", "view=beams&theme=light&lang=en&text=I%20love%20you.&x.beams.size=2", 900),
    (
        "viewer-tour.png",
        "en-zh",
        "view=tour&x.tour.stop=cross&layer=2&theme=light&lang=en&text=Where%20is%20the%20station?",
        1060,
    ),
)


def every_view() -> Iterator[tuple[str, str, str, int]]:
    """File, model, state and width of every view in both themes."""
    for model in MODELS:
        for view in VIEWS:
            for theme in ("light", "dark"):
                for width in WIDTHS:
                    yield f"{model}-{view}-{theme}-{width}.png", model, f"view={view}&theme={theme}&lang=en", width


def shoot(browser: Browser, address: str, state: str, width: int, path: Path) -> None:
    """Write the page in this state as a picture, once nothing is loading."""
    page: Any = browser.new_page(viewport={"width": width, "height": 800}, reduced_motion="reduce")
    page.goto(f"{address}#{state}")
    page.wait_for_selector("main > *")
    settle(page)
    page.screenshot(path=path, full_page=True)
    page.close()


def main() -> None:
    """Write the screenshots that the arguments ask for."""
    parser = argparse.ArgumentParser(description="Take screenshots of the viewer's page, with the shipped models.")
    parser.add_argument("folder", nargs="?", type=Path, help="take all of them, here; default: those of docs/images")
    stated: Path | None = parser.parse_args().folder
    folder, wanted = (IMAGES, list(CHOSEN)) if stated is None else (stated, list(every_view()))
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        for model in dict.fromkeys(model for _, model, *_ in wanted):
            server = start_server((model,))
            for name, owner, state, width in wanted:
                if owner == model:
                    shoot(browser, server.address, state, width, folder / name)
            server.stop()
        browser.close()


if __name__ == "__main__":
    main()
