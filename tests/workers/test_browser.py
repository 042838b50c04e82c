"""Test the page over a whole deployment: a real Chromium shows the target's own text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.browser import Browser, chromium
from tests.workers.cluster import Cluster

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PROMPT = "Write a Python function that adds two numbers."


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with chromium(tmp_path) as window:
        yield window


def test_the_page_streams_the_targets_own_text(real: Cluster, browser: Browser) -> None:
    real.await_ready()
    alone = real.post({"prompt": PROMPT, "max_tokens": 96, "speculation": False})
    browser.open(real.url)
    browser.complaints()
    browser.type("#prompt", PROMPT)
    browser.type("#max_tokens", "96")
    browser.click("#send")
    partial = browser.wait(lambda: browser.text("#output"))
    browser.wait(lambda: browser.text("#status").startswith("Finished"), timeout_s=60.0)
    text = browser.text("#output")
    assert text == alone["text"]
    assert text.startswith(partial) and len(partial) < len(text)  # it was shown before it was complete
    assert float(browser.text("#accepted")) > 1.0  # how much more is a matter of how busy the machine is
    assert float(browser.text("#speed")) > 0 and float(browser.text("#ttft")) > 0
    assert (
        browser.run("return new Set([...document.querySelectorAll('#output span')].map((s) => s.className)).size") > 1
    )
    assert browser.complaints() == []
