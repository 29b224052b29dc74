"""Where there is no browser, tests of the page are skipped; in CI they fail."""

import pytest

from tests.browser.conftest import without_browser


def test_ci_does_not_pass_without_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSFORMER_NEEDS_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        without_browser("no Chromium")
    monkeypatch.setenv("GLASSFORMER_NEEDS_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        without_browser("no Chromium")
