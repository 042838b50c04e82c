"""Test metrics and timelines of a real deployment: right across its processes, and across a kill."""

import signal
import time

from prometheus_client.parser import text_string_to_metric_families

from app.request import GenerateRequest
from app.store.traces import trace_name
from tests.workers.cluster import Cluster, wait_for
from workers.deployment import Deployment

STILL = ("paceline_tokens_committed_total", "paceline_requests_ended_total", "paceline_requests_admitted_total")
Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(cluster: Cluster) -> Scrape:
    families = text_string_to_metric_families(cluster.read("/metrics"))
    samples = [sample for family in families for sample in family.samples]
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples}


def total(found: Scrape, name: str) -> float:
    return sum(value for (own, _), value in found.items() if own == name)


def settled(cluster: Cluster) -> Scrape:
    """Return the metrics once no counter changes: processes report theirs every half second."""
    found = scraped(cluster)
    for _ in range(20):
        time.sleep(1.5)
        last, found = found, scraped(cluster)
        if all(total(last, name) == total(found, name) for name in STILL):
            return found
    raise AssertionError("something is still counted, half a minute later")


def test_counters_add_up_and_go_on_after_processes_die(cluster: Cluster, deployment: Deployment) -> None:
    before = settled(cluster)

    def gained(name: str) -> float:
        return total(scraped(cluster), name) - total(before, name)

    def is_counted(tokens: int, requests: int) -> bool:
        """Tell whether all processes have reported: a killed one loses what it counted since it last did."""
        counted = dict(zip(STILL, (tokens, requests, requests), strict=True))
        return all(gained(name) == count for name, count in counted.items())

    first = GenerateRequest(prompt="Count me", raw=True, max_tokens=60, temperature=0.9, seed=71)
    stream = cluster.stream(first).read()
    wait_for(lambda: is_counted(tokens=60, requests=1), 10, "60 tokens in the metrics")
    cluster.signal("web", signal.SIGKILL)
    cluster.signal("fuse", signal.SIGKILL)
    cluster.await_ready()
    second = cluster.stream(first.model_copy(update={"max_tokens": 40, "seed": 72})).read()
    wait_for(lambda: is_counted(tokens=100, requests=2), 10, "100 tokens in the metrics")

    rounds = sum(one.result["speculation"]["rounds"] for one in (stream, second))
    drafted = sum(one.result["speculation"]["drafted"] for one in (stream, second))
    assert gained("paceline_accepted_length_tokens_count") == rounds
    assert gained("paceline_draft_tokens_at_load_total") == drafted
    assert gained("paceline_first_token_seconds_count") == 2
    assert gained("paceline_busy_seconds_total") > 0 and gained("paceline_queue_wait_seconds_count") > 0

    def timeline() -> set[str]:
        return {span.kind for span in deployment.traces.spans(trace_name(second.id))}

    kinds = 2 if "twin" in second.result["speculation"]["by_drafter"] else 1  # the verifier itself looks up
    wait_for(lambda: "verify" in timeline() and len(timeline()) >= kinds, 10, "the timeline")
    facts = deployment.traces.recent(1)[trace_name(second.id)]
    assert facts["tokens"] == "40" and facts["reason"] == '"length"'
    data = cluster.get("/dashboard/data")
    assert data["requests"][0]["trace"] == trace_name(second.id) and len(data["samples"]) > 2


def test_a_cancelled_request_is_counted_once(cluster: Cluster) -> None:
    ended = ("paceline_requests_ended_total", (("reason", "cancelled"),))
    before = scraped(cluster).get(ended, 0.0)
    stream = cluster.stream(GenerateRequest(prompt="Stop me", raw=True, max_tokens=400)).read(until=5)
    cluster.get(f"/api/requests/{stream.id}", "DELETE")
    cluster.get(f"/api/requests/{stream.id}", "DELETE")
    stream.read()
    wait_for(lambda: scraped(cluster).get(ended, 0.0) == before + 1, 10, "the end in the metrics")
