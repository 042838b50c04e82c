"""What a process writes about when it was busy, and that it writes nothing unless it is told to."""

from pathlib import Path

from bench.timeline import busy, read
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.tracing.spans import Spans


def test_a_span_says_who_when_and_about_how_many_sequences(tmp_path: Path) -> None:
    spans = Spans(tmp_path / "new", "verify", "verify-1")
    spans.toggle(True)
    spans.sequences = 3
    spans.toggle(False)
    spans.toggle(True)
    spans.toggle(False)
    spans.flush()
    first, second = read(tmp_path / "new")
    assert (first.node, first.kind, first.sequences) == ("verify-1", "verify", 3)
    assert first.start_s <= first.end_s <= second.start_s
    assert second.sequences == 0, "what was said of one batch must not be said of the next"


def test_each_span_is_written_once(tmp_path: Path) -> None:
    spans = Spans(tmp_path, "draft", "draft-1")
    for _ in range(3):
        spans.toggle(True)
        spans.toggle(False)
        spans.flush()
        spans.flush()
    assert len(read(tmp_path)) == 3


def test_a_pulse_writes_its_spans_by_its_end(lone_deployment: Deployment, tmp_path: Path) -> None:
    lone_deployment.settings = lone_deployment.settings.model_copy(update={"spans": tmp_path})
    heartbeat = Heartbeat(lone_deployment, "verify", "v")
    heartbeat.begin()
    heartbeat.busy(True)
    heartbeat.works_on(2)
    heartbeat.busy(False)
    heartbeat.end()
    assert [(span.node, span.sequences) for span in read(tmp_path)] == [("v", 2)]


def test_without_a_folder_nothing_is_kept(lone_deployment: Deployment) -> None:
    heartbeat = Heartbeat(lone_deployment, "verify", "v")
    heartbeat.busy(True)
    heartbeat.works_on(2)
    heartbeat.busy(False)
    assert heartbeat._spans is None


def test_busy_counts_what_lies_inside_only(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"node": "a", "kind": "draft", "start_s": 0.0, "end_s": 2.0, "sequences": 1}\n'
        '{"node": "a", "kind": "draft", "start_s": 3.0, "end_s": 5.0, "sequences": 1}\n'
        '{"node": "a", "kind"'  # the process was killed here
    )
    assert busy(read(tmp_path), 1.0, 5.0) == {"a": 0.75}
