"""Test the page in a real Chromium: it streams, colours and stops answers; hostile text stays text."""

import json
from collections.abc import Iterator

import pytest

from tests.web.browser import Browser
from tests.web.conftest import TEXT, Server
from tests.web.doubles import ScriptedVerifier

pytestmark = pytest.mark.browser

CONTROL, ENTER = "\ue009", "\ue007"  # WebDriver's names of the keys


@pytest.fixture
def page(window: Browser, server: Server) -> Iterator[Browser]:
    window.open(server.url)
    window.complaints()
    yield window


def finished(page: Browser) -> str:
    status: str = page.wait(lambda: (text := page.text("#status")).startswith("Finished") and text)
    return status


def test_an_answer_streams_in_coloured_by_proposer(page: Browser, verifier: ScriptedVerifier) -> None:
    verifier.going.clear()
    page.click("#send")
    page.wait(lambda: verifier.deployment.requests.active())
    verifier.pause_s = 0.1
    verifier.going.set()
    partial = page.wait(lambda: page.text("#output"))
    assert TEXT.startswith(partial) and partial != TEXT  # it is shown before it is complete
    assert page.text("#accepted") == "3.00"
    finished(page)
    assert page.text("#output") == TEXT
    assert page.text("#count") == str(len(verifier.answer))
    assert float(page.text("#speed")) > 0 and float(page.text("#ttft")) > 0
    titles = page.run("return [...document.querySelectorAll('#output span')].map((s) => [s.className, s.title])")
    assert {(name, title.split(" · ")[0]) for name, title in titles} == {
        ("p0", "drafted by lookup"),
        ("p1", "drafted by smol-general"),
        ("", "the target itself"),
    }
    assert "lookup" in page.text("#legend") and "the target itself" in page.text("#legend")
    assert page.complaints() == []


def test_model_output_is_never_markup(page: Browser, verifier: ScriptedVerifier) -> None:
    page.click("#send")
    finished(page)
    assert "<script>alert('no')</script>" in page.text("#output")
    assert page.run("return document.querySelectorAll('#output *:not(span)').length") == 0


def test_hostile_pieces_names_and_errors_are_text(page: Browser) -> None:
    hostile = "<img src=x onerror=document.title='owned'>"
    events = [
        ("tokens", {"offset": 0, "tokens": [1], "proposers": [hostile], "pieces": [hostile], "stats": {"rounds": 1}}),
        ("error", {"error": {"message": hostile}}),
    ]
    stream = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
    page.run(f"window.fetch = async () => new Response({json.dumps(stream)}, {{headers: {{'X-Request-Id': 'r'}}}})")
    page.click("#send")
    page.wait(lambda: page.text("#error"))
    assert page.text("#output") == page.text("#error") == hostile
    assert hostile in page.text("#legend")
    assert page.run("return document.querySelectorAll('main img').length") == 0
    assert page.run("return document.title") == "Paceline"


def test_the_forms_fields_reach_the_request(page: Browser, verifier: ScriptedVerifier) -> None:
    page.type("#prompt", "once upon")
    page.run("document.querySelector('input[value=raw]').click()")
    for field, value in {
        "max_tokens": "7",
        "temperature": "0.8",
        "top_p": "0.9",
        "seed": str(2**63 - 1),
    }.items():
        page.type(f"#{field}", value)
    page.click("#speculation")
    page.click("#send")
    assert "it reached its length, 7 tokens" in finished(page)
    record = verifier.deployment.requests.snapshot(verifier.seen[-1]).record
    assert record.prompt_ids == tuple(verifier.deployment.tokenizer.encode("once upon"))
    sampling = record.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.8, 0.9, 2**63 - 1)
    assert not record.speculation.enabled
    assert page.run("return document.querySelectorAll('#output .p0').length") == 0


def test_stop_cancels(page: Browser, verifier: ScriptedVerifier) -> None:
    verifier.pause_s = 0.2
    page.click("#send")
    page.wait(lambda: page.text("#output"))
    page.click("#stop")
    assert "it was stopped" in finished(page)
    assert verifier.deployment.requests.active() == 0
    assert page.run("return document.querySelector('#send').disabled") is False


def test_errors_are_shown_at_their_field(page: Browser, verifier: ScriptedVerifier) -> None:
    page.type("#max_tokens", "0")
    page.click("#send")
    page.wait(lambda: not page.run("return document.querySelector('#error').hidden"))
    assert page.text("#error").startswith("max_tokens:")
    assert page.run("return document.activeElement.id") == "max_tokens"
    assert page.run("return document.activeElement.getAttribute('aria-invalid')") == "true"
    page.type("#max_tokens", "5")
    page.click("#send")
    finished(page)
    assert page.run("return document.querySelector('#error').hidden")


def test_works_by_keyboard_alone(page: Browser, verifier: ScriptedVerifier) -> None:
    assert page.run("return document.activeElement.id") == "prompt"
    page.press(CONTROL, ENTER)
    finished(page)
    assert page.text("#output") == TEXT


def test_a_broken_connection_is_taken_up_again(page: Browser, verifier: ScriptedVerifier) -> None:
    # cut the first stream off after two chunks, as a restarting server or proxy would; then be full
    page.run(
        """
        const real = window.fetch;
        let calls = 0;
        window.fetch = async (...args) => {
          calls += 1;
          if (calls === 2) return new Response('{"error": {"message": "full", "field": null}}', { status: 429 });
          const response = await real(...args);
          if (calls > 1) return response;
          const reader = response.body.getReader();
          let chunks = 0;
          const cut = new ReadableStream({
            async pull(controller) {
              const { done, value } = await reader.read();
              if (done || (chunks += 1) > 2) return controller.error(new TypeError("network error"));
              controller.enqueue(value);
            },
          });
          return new Response(cut, { headers: response.headers });
        };
        """
    )
    verifier.pause_s = 0.1
    page.click("#send")
    page.wait(lambda: "trying again" in page.text("#status"))
    finished(page)
    assert page.text("#output") == TEXT


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_every_screen(width: int, scheme: str, page: Browser, verifier: ScriptedVerifier) -> None:
    page.emulate(
        method="Emulation.setDeviceMetricsOverride",
        width=width,
        height=800,
        deviceScaleFactor=1,
        mobile=width < 500,
    )
    page.emulate(method="Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        page.click("#send")
        finished(page)
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert page.run(LOWEST_CONTRAST) >= 4.5
    finally:
        page.emulate(method="Emulation.clearDeviceMetricsOverride")
        page.emulate(method="Emulation.setEmulatedMedia", features=[])


# WCAG's contrast of every text with what is painted behind it; the lowest of all
LOWEST_CONTRAST = """
const parts = (colour) => {
  const found = colour.match(/[\\d.]+(e-\\d+)?/g).map(Number);
  return colour.startsWith("color(") ? found.map((v, i) => (i < 3 ? 255 * v : v)) : found;
};
const light = (colour) => {
  const [r, g, b] = parts(colour).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if ((parts(colour)[3] ?? 1) === 1) return colour;
  }
  return "rgb(255, 255, 255)";
};
const texts = [...document.querySelectorAll("body *")].filter((e) =>
  e.checkVisibility() && !e.disabled
  && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
const contrast = texts.map((e) => {
  const pair = [light(getComputedStyle(e).color), light(behind(e))].sort((a, b) => b - a);
  return (pair[0] + 0.05) / (pair[1] + 0.05);
});
return Math.min(...contrast);
"""
