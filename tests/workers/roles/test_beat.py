"""Test the progress that the beat process reports."""

from types import SimpleNamespace

import pytest

from app.store.protocol import Node
from tests.workers.cluster import wait_for
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.roles.beat import _ticking


def test_a_ticking_beat_is_not_busy_and_a_hung_one_has_no_progress(
    lone_deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, beats = 1000.0, 0

    def info() -> dict[str, int]:
        nonlocal beats
        beats += 1
        return {"beats": beats}

    def seen() -> Node:
        """Wait for a heartbeat that begins from now on."""
        first = beats + 1
        return wait_for(lambda: next((n for n in deployment.nodes.live("beat") if n.info["beats"] >= first), None))

    deployment = lone_deployment
    clock = SimpleNamespace(time=lambda: now_s, monotonic=lambda: now_s)
    monkeypatch.setattr("workers.heartbeat.time", clock)
    heartbeat = Heartbeat(deployment, "beat", "beat-1", info=info)
    heartbeat.begin()
    try:
        scheduler = _ticking(heartbeat)(app=deployment.celery, lazy=True)
        for _ in range(10):
            scheduler.tick()
            ticked_s = now_s
            now_s += 0.1
        ticking = seen()
        assert ticking.info["busy"] < 0.1, "it sleeps between ticks"
        now_s += 60.0  # no tick: it hangs
        assert ticking.progress_s == pytest.approx(ticked_s) == seen().progress_s
    finally:
        heartbeat.end()
