"""Test the dashboard: its data over a real Redis, and the page in a real Chromium."""

import json
import time

import pytest
from flask.testing import FlaskClient

from app.config import Settings
from app.counters import Counters
from app.metrics import (
    ACCEPTED,
    ACCEPTED_LENGTH,
    ASKED,
    AT_LOAD,
    DRAFT_DEPTH,
    DRAFTED,
    DRAFTED_AT_LOAD,
    ENDED,
    FIRST_TOKEN,
    ROUNDS_DRAFTED,
    TOKENS,
)
from app.store.shared_stats import StatsExchange
from app.store.traces import Trace, TraceSpan
from tests.web.browser import Browser
from tests.web.conftest import Server
from tests.web.test_page import LOWEST_CONTRAST
from web.ops.deployment_state import read_state
from web.ops.history import HistoryWriter, sample
from workers.deployment import Deployment

HOSTILE = "<img src=x onerror=document.title='owned'>"
KINDS = ("web", "control", "verify", "draft", "fuse", "beat")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"lease_s": 60.0})  # without heartbeats here


def busy(deployment: Deployment, drafter: str = "lookup") -> None:
    """Put a deployment at work into the store: processes, counts, samples, a request with its timeline."""
    now_s = time.time()
    for kind in KINDS:
        info = {"sequences": 1, "cache_tokens": 1000, "cache_tokens_free": 750} if kind == "verify" else {}
        deployment.nodes.beat(kind, f"{kind}-1", kind, progress_s=now_s, info=info)
    counters = Counters()
    exchange = StatsExchange(counters, deployment.shared_stats)
    counters.count(TOKENS, "target", by=4)
    counters.observe(ACCEPTED_LENGTH, 1)
    exchange.close()
    for ago_s in (2.0, 1.0):
        deployment.history.add(sample(read_state(deployment), now_s - ago_s))
    for name in ("target", drafter):
        counters.count(TOKENS, name, by=50)
    for position, (drafted, accepted) in {"1": (40, 30), "2": (20, 5)}.items():
        counters.count(DRAFTED, drafter, position, by=drafted)
        counters.count(ACCEPTED, drafter, position, by=accepted)
    counters.count(ASKED, drafter, by=40)
    counters.count(AT_LOAD, "1", by=40)
    counters.count(DRAFTED_AT_LOAD, "1", by=60)
    counters.count(ENDED, "length")
    counters.count(ROUNDS_DRAFTED, by=20)
    counters.count(DRAFT_DEPTH, by=40)
    for length in (1, 3):
        counters.observe(ACCEPTED_LENGTH, length)
    counters.observe(FIRST_TOKEN, 0.2)
    exchange.close()
    deployment.history.add(sample(read_state(deployment), now_s))
    stats = {"rounds": 2, "by_drafter": {drafter: {"drafted": 8, "accepted": 8}}}
    facts = {"created_s": now_s - 2.0, "tokens": 8, "reason": "", "stats": stats}
    spans = [
        TraceSpan(now_s - 1.5, now_s - 1.0, "verify", "verify-1", 2),
        TraceSpan(now_s - 1.0, now_s - 0.9, "fuse", "fuse-1", 1),
    ]
    deployment.traces.add([Trace("abcdef123456", {name: json.dumps(value) for name, value in facts.items()}, spans)])


def test_data_shows_the_deployments_state(deployment: Deployment, client: FlaskClient) -> None:
    busy(deployment)
    data = client.get("/dashboard/data").get_json()
    assert data["missing"] == [] and {node["name"] for node in data["nodes"]} == {f"{kind}-1" for kind in KINDS}
    assert data["positions"] == [
        {"drafter": "lookup", "position": 1, "drafted": 40, "accepted": 30},
        {"drafter": "lookup", "position": 2, "drafted": 20, "accepted": 5},
    ]
    assert data["load"] == [{"sequences": 1, "rounds": 40, "drafted": 60}]
    first, *_, last = data["samples"]
    assert last["depths"]["start"] == 0 and last["running"] == 1
    assert (first["tokens"], last["tokens"]) == ({"target": 4}, {"lookup": 50, "target": 54})
    later = client.get(f"/dashboard/data?after={first['at_s']}").get_json()
    assert later["samples"] == data["samples"][1:]
    assert [request["trace"] for request in data["requests"]] == ["abcdef123456"]


def test_one_sample_a_second_however_many_web_processes(deployment: Deployment) -> None:
    for writer in (HistoryWriter(deployment), HistoryWriter(deployment)):
        writer.beat()
        writer.beat()
    assert len(deployment.history.last(9)) == 1


def test_timelines_are_served_and_wrong_arguments_refused(deployment: Deployment, client: FlaskClient) -> None:
    busy(deployment)
    spans = client.get("/dashboard/requests/abcdef123456").get_json()["spans"]
    assert [span[2:] for span in spans] == [["verify", "verify-1", 2], ["fuse", "fuse-1", 1]]
    assert client.get("/dashboard/requests/unknown").status_code == 404
    for wrong in ("x", "-1", "nan", "1e300"):
        assert client.get(f"/dashboard/data?after={wrong}").status_code == 400, wrong


def opened(window: Browser, server: Server) -> Browser:
    window.open(f"{server.url}/dashboard")
    window.complaints()
    window.wait(lambda: window.text("#health-text") != "Connecting …")
    return window


@pytest.mark.browser
def test_the_page_shows_the_deployment_at_work(window: Browser, server: Server, deployment: Deployment) -> None:
    busy(deployment)
    page = opened(window, server)
    assert page.text("#health-text") == "All processes live"
    assert page.text("#t-kv") == "25.0 %" and page.text("#t-length") == "2.00"
    assert float(page.text("#t-rate")) > 0
    cells = page.run("return [...document.querySelectorAll('#positions tbody tr *')].map((e) => e.textContent)")
    assert cells == ["lookup", "75", "25"]
    assert page.run("return document.querySelectorAll('#c-rate .area').length") == 2
    drafts = page.run("return document.querySelector('#c-spec svg').getAttribute('aria-label')")
    assert drafts == "Now: draft tokens in a row 2, most the policy allows models 8, sequences running 1"
    assert page.run("return document.querySelector('#l-rate li:nth-child(2) .key').className") == "key k-0"
    assert "[object" not in page.text("main")
    assert "100 %" in page.run("return document.querySelector('#matrix td[data-tip]').dataset.tip")
    assert "abcdef123456: runs, 8 tokens in 2 rounds" in page.text("#line-about")
    lanes = page.run("return [...document.querySelectorAll('.lanes span')].map((e) => e.textContent)")
    assert lanes == ["verify-1", "fuse-1", "waiting"]
    assert page.run("return document.querySelectorAll('.plot .bar.k-verify').length") == 1
    assert page.complaints() == []


@pytest.mark.browser
def test_the_page_is_live_until_paused_and_names_missing_kinds(
    window: Browser, server: Server, deployment: Deployment
) -> None:
    busy(deployment)
    page = opened(window, server)
    deployment.nodes.retire("fuse", "fuse-1", "fuse")
    page.wait(lambda: page.text("#health-text").startswith("Degraded: no fusion"))
    page.click("#live")
    assert page.text("#live") == "Paused"
    deployment.nodes.beat("fuse", "fuse-1", "fuse", progress_s=time.time(), info={})
    time.sleep(1.5)
    assert page.text("#health-text").startswith("Degraded")
    page.click("#live")
    page.wait(lambda: page.text("#health-text") == "All processes live")


@pytest.mark.browser
def test_names_from_the_server_are_shown_as_text(window: Browser, server: Server, deployment: Deployment) -> None:
    busy(deployment, drafter=HOSTILE)
    page = opened(window, server)
    assert HOSTILE in page.text("#positions") and HOSTILE in page.text("#l-rate") and HOSTILE in page.text("#matrix")
    assert page.run("return document.querySelectorAll('main img').length") == 0
    assert page.run("return document.title") == "Paceline dashboard"


@pytest.mark.browser
def test_the_page_works_by_keyboard_and_keeps_the_theme(
    window: Browser, server: Server, deployment: Deployment
) -> None:
    busy(deployment)
    page = opened(window, server)
    page.run("document.querySelector('#matrix button').focus()")
    page.press("\ue007")
    page.wait(lambda: page.run("return !document.querySelector('#follow').checked"))
    assert page.run("return document.activeElement.dataset.trace") == "abcdef123456", "the focus stays where it was"
    width = page.run("return document.querySelector('.plot svg').clientWidth")
    page.run("document.querySelector('#in').focus()")
    page.press("\ue007")
    page.wait(lambda: page.run("return document.querySelector('.plot svg').clientWidth") == 2 * width)
    page.run("document.querySelector('#theme').focus()")
    page.press("\ue007")
    assert page.run("return document.documentElement.dataset.theme") == "light"
    page.press("\ue007")
    page.open(server.url)
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    page.run("localStorage.clear()")


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 768, 1360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_dashboard_fits_every_screen(
    width: int, scheme: str, window: Browser, server: Server, deployment: Deployment
) -> None:
    busy(deployment)
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    window.emulate(method="Emulation.setDeviceMetricsOverride", **metrics)
    window.emulate(method="Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    try:
        page = opened(window, server)
        page.wait(lambda: page.run("return document.querySelectorAll('.plot .bar').length"))
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert page.run(LOWEST_CONTRAST) >= 4.5
        names = "[...document.querySelectorAll('button, input, th, [role=group], svg[role=img]')].map((e) => "
        names += (
            "e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent || e.labels?.length)"
        )
        assert page.run(f"return {names}.every(Boolean)"), "everything that can be reached has a name"
    finally:
        window.emulate(method="Emulation.clearDeviceMetricsOverride")
        window.emulate(method="Emulation.setEmulatedMedia", features=[])
