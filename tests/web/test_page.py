"""Test the page in a real Chromium: it streams, colours and stops answers; hostile text stays text."""

import json
from collections.abc import Iterator

import pytest

from app.engine.text.tokenizer import Tokenizer
from tests.web.browser import Browser
from tests.web.conftest import TEXT, Server
from tests.web.doubles import ROUND, ScriptedVerifier
from workers.deployment import Deployment

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
        ("p3", "drafted by smol-general"),  # its place in the deployment's list, however late it comes
        ("", "the target itself"),
    }
    assert "lookup" in page.text("#legend") and "the target itself" in page.text("#legend")
    assert page.complaints() == []


def test_model_output_is_never_markup(page: Browser, verifier: ScriptedVerifier) -> None:
    page.click("#send")
    finished(page)
    assert "<script>alert('no')</script>" in page.text("#output")
    assert page.run("return document.querySelectorAll('#output *:not(p, span)').length") == 0


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


MARKDOWN = """# A *fine* title

Some **bold, `code` inside**, snake_case_name, 2 * 3 * 4 and \\*no emphasis\\*.
1. one
2. two
   - nested
> quoted
```python
if a < b: <b>**x**</b>

    print("`")
```
| a | b |
[link](javascript:alert(1)) and an open `mark and **another"""
SHOWN = (
    "<h2>A <em>fine</em> title</h2>\n\n"
    "<p>Some <strong>bold, <code>code</code> inside</strong>, snake_case_name, 2 * 3 * 4 and *no emphasis*.</p>\n"
    '<div><ol start="1"><li>one</li><li>two<ul><li>nested</li></ul></li></ol></div>\n'
    "<blockquote>quoted\n</blockquote>\n"
    '<pre tabindex="0" data-language="python"><code>if a &lt; b: &lt;b&gt;**x**&lt;/b&gt;\n\n'
    '    print("`")\n</code></pre>\n'
    '<pre tabindex="0">| a | b |</pre>\n'
    "<p>[link](javascript:alert(1)) and an open `mark and **another</p>"
)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_markdown_is_shown_as_it_comes_and_raw_on_demand(page: Browser, size: int) -> None:
    pieces = [MARKDOWN[i : i + size] for i in range(0, len(MARKDOWN), size)]
    show = f"""
    const {{ show }} = await import("/static/markdown.js");
    const host = document.createElement("div"), pieces = {json.dumps(pieces)};
    let source = "";
    for (const piece of pieces) {{
      source += piece;
      show(host, source, (from, to) => [document.createTextNode(source.slice(from, to))]);
    }}
    window.shown = host.innerHTML;
    """
    page.run(f"(async () => {{ {show} }})()")
    assert page.wait(lambda: page.run("return window.shown")) == SHOWN


def test_the_formatted_answer_keeps_its_colours(page: Browser, tokenizer: Tokenizer, deployment: Deployment) -> None:
    with ScriptedVerifier(deployment, [*tokenizer.encode(MARKDOWN), tokenizer.eos_ids[0]]):
        page.click("#send")
        finished(page)
        page.wait(lambda: page.text("#output h2") == "A fine title")
        assert page.run("return document.querySelectorAll('#output pre code .p0').length") > 0
        assert "mono" in page.run("return getComputedStyle(document.querySelector('#output pre code')).fontFamily")
        page.click("#view label:nth-of-type(2)")
        assert page.text("#output") == MARKDOWN


def test_rounds_and_rejected_guesses_are_shown_on_demand(page: Browser, verifier: ScriptedVerifier) -> None:
    page.click("#send")
    finished(page)
    page.click("#view label:nth-of-type(3)")
    assert page.text("#output") == TEXT, "rejected guesses are no part of the text"
    rounds = page.run("return document.querySelectorAll('#output .round').length")
    assert rounds == -(-len(verifier.answer) // ROUND)
    wrong = "document.querySelector('#output .round .wrong.p3')"
    assert page.run(f"return {wrong}.dataset.text").startswith(" the")
    assert page.run("return document.querySelector('#output .right').dataset.right") == f"{ROUND - 1}/{ROUND}"
    assert page.run(f"return {wrong}.checkVisibility() && document.querySelector('#guide').checkVisibility()")
    page.click("#view label:nth-of-type(2)")
    assert not page.run(f"return {wrong}.checkVisibility()")
    assert page.text("#output") == TEXT


def test_both_ways_compares_speed_and_text(page: Browser, verifier: ScriptedVerifier) -> None:
    page.click("#both-ways")
    page.wait(lambda: "compared one by one" in page.text("#same"))
    assert f"all {len(verifier.answer)} tokens" in page.text("#same")
    assert page.run("return document.querySelector('#same').className") == "good"
    records = [verifier.deployment.requests.snapshot(request_id).record for request_id in verifier.seen]
    assert [record.speculation.enabled for record in records] == [True, False]
    assert records[0].sampling == records[1].sampling and records[0].prompt_ids == records[1].prompt_ids
    for way in ("with", "without"):
        assert float(page.text(f"#rate-{way}").removesuffix(" tokens/s")) > 0
        assert page.run(f"return document.querySelector('#bar-{way}').style.width").endswith("%")
    assert page.text("#output") == TEXT
    assert page.complaints() == []


def test_both_ways_shows_loudly_that_texts_differ(page: Browser, verifier: ScriptedVerifier) -> None:
    page.run(
        """
        const real = window.fetch;
        let calls = 0;
        window.fetch = async (...args) => {
          const response = await real(...args);
          if ((calls += 1) < 2) return response;
          const text = (await response.text()).replace('"token_ids":[', '"token_ids":[9,');
          return new Response(text.replace('"text":"Gr', '"text":"Kr'), { headers: response.headers });
        };
        """
    )
    page.click("#both-ways")
    page.wait(lambda: page.text("#same").startswith("The texts differ from token 1 on"))
    assert page.run("return document.querySelector('#same').className") == "bad"
    assert page.run("return document.querySelector('#same').getAttribute('role')") == "alert"


def test_a_reload_takes_the_request_up_again(page: Browser, verifier: ScriptedVerifier) -> None:
    page.type("#prompt", "once upon")
    page.type("#max_tokens", "400")
    verifier.pause_s = 0.1
    page.click("#send")
    page.wait(lambda: page.text("#output"))
    page.run("location.reload()")
    page.wait(lambda: page.text("#status") == "Generating …")
    verifier.pause_s = 0.005
    assert page.run("return document.querySelector('#send').disabled")
    ended = finished(page)
    assert page.text("#output") == TEXT and len(verifier.seen) == 1
    assert [page.run(f"return document.querySelector('#{name}').value") for name in ("prompt", "max_tokens")] == [
        "once upon",
        "400",
    ]
    page.run("location.reload()")
    page.wait(lambda: page.text("#ttft") != "–")
    assert page.text("#output") == TEXT and page.text("#status") == ended
    verifier.deployment.requests._client.flushdb()  # its record has expired
    page.run("location.reload()")
    page.wait(lambda: page.text("#status") == "Ready.")
    assert page.run("return document.querySelector('#error').hidden")
    assert page.run("return document.querySelector('#prompt').value") == "once upon"


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


def test_the_text_is_whole_once_the_status_says_finished(page: Browser, verifier: ScriptedVerifier) -> None:
    page.run("window.requestAnimationFrame = () => 0")  # as where the page is not in sight
    page.click("#send")
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
        top = "document.querySelector('{}').getBoundingClientRect().top"
        before = f"return {top.format('#output')} < {top.format('#numbers')}"
        assert page.run(before) == (width < 500), "on a phone the text comes before the numbers"
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
