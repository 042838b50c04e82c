"""Test the page over a whole deployment: a real Chromium shows the target's own text."""

import time
from collections.abc import Iterator

import pytest

from tests.web.browser import Browser, chromium
from tests.workers.cluster import Cluster, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PROMPT = "Write a Python function that adds two numbers."


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as window:
        yield window


def test_the_page_streams_the_targets_own_text(real: Cluster, browser: Browser) -> None:
    real.await_ready()
    alone = real.post({"prompt": PROMPT, "max_tokens": 96, "speculation": False})
    # Costs timed at start beside other work may tell that drafts do not pay, until the verifier is idle.
    wait_for(lambda: time.sleep(3.0) or real.post({"prompt": PROMPT})["speculation"]["accepted"], 150.0, "drafts")
    browser.open(real.url)
    browser.complaints()
    browser.type("#prompt", PROMPT)
    browser.type("#max_tokens", "96")
    browser.click("#view label:nth-of-type(2)")
    browser.click("#send")
    partial = browser.wait(lambda: browser.text("#output"))
    browser.wait(lambda: browser.text("#status").startswith("Finished"), timeout_s=60.0)
    text = browser.text("#output")
    assert text == alone["text"]
    assert text.startswith(partial) and len(partial) < len(text)  # it was shown before it was complete
    assert float(browser.text("#accepted")) > 1.0  # how much more is a matter of how busy the machine is
    assert float(browser.text("#speed")) > 0 and float(browser.text("#ttft")) > 0
    assert browser.run("return new Set([...document.querySelectorAll('#output span')].map(s => s.className)).size") > 1
    assert browser.complaints() == []


def test_both_ways_say_the_same_and_rejected_guesses_are_shown(real: Cluster, browser: Browser) -> None:
    real.await_ready()
    browser.open(real.url)
    browser.type("#prompt", PROMPT)
    browser.type("#max_tokens", "48")
    browser.type("#temperature", "0.8")  # with one seed drawn for both
    browser.click("#both-ways")
    browser.wait(lambda: "compared one by one" in browser.text("#same"), timeout_s=120.0)
    assert browser.run("return document.querySelector('#same').className") == "good"
    result = real.get("/api/requests/" + browser.run("return JSON.parse(sessionStorage['paceline-request']).id"))
    report = result["speculation"]
    browser.click("#view label:nth-of-type(3)")
    assert browser.text("#output") == result["text"]
    assert browser.run("return document.querySelectorAll('#output .round').length") == report["rounds"]
    wrong = browser.run("return document.querySelectorAll('#output .wrong').length")
    assert wrong > 0 or report["drafted"] - report["accepted"] < 8  # those behind an end are not wrong
    assert browser.complaints() == []
