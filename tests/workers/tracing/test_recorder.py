"""Test that a process records its spans of work, to files only where the settings name a folder."""

from pathlib import Path

from bench.timeline import busy, read
from tests.workers.conftest import with_settings
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.tracing.recorder import Recorder
from workers.tracing.sinks import FileSink


def test_a_span_names_worker_times_and_number_of_sequences(tmp_path: Path) -> None:
    recorder = Recorder("verify", [FileSink(tmp_path / "new", "verify", "verify-1")])
    recorder.begin_work()
    recorder.working_on(("a", "b", "c"))
    recorder.end_work()
    recorder.begin_work()
    recorder.end_work()
    recorder.flush({})
    first, second = read(tmp_path / "new")
    assert (first.node, first.kind, first.sequences) == ("verify-1", "verify", 3)
    assert first.start_s <= first.end_s <= second.start_s
    assert second.sequences == 0, "the requests of one batch are not those of the next"


def test_each_span_is_written_once(tmp_path: Path) -> None:
    recorder = Recorder("draft", [FileSink(tmp_path, "draft", "draft-1")])
    for _ in range(3):
        recorder.begin_work()
        recorder.end_work()
        recorder.flush({})
        recorder.flush({})
    assert len(read(tmp_path)) == 3


def test_a_heartbeat_writes_its_spans_by_its_end(lone_deployment: Deployment, tmp_path: Path) -> None:
    heartbeat = Heartbeat(with_settings(lone_deployment, spans=tmp_path), "verify", "v")
    heartbeat.begin()
    heartbeat.begin_work()
    heartbeat.working_on(("a", "b"))
    heartbeat.end_work()
    heartbeat.end()
    assert [(span.node, span.sequences) for span in read(tmp_path)] == [("v", 2)]


def test_without_a_folder_nothing_is_kept(lone_deployment: Deployment) -> None:
    heartbeat = Heartbeat(lone_deployment, "verify", "v")
    heartbeat.begin_work()
    heartbeat.working_on(("a", "b"))
    heartbeat.end_work()
    assert not [sink for sink in heartbeat.recorder.sinks if isinstance(sink, FileSink)]


def test_busy_counts_only_work_within_the_window(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"node": "a", "kind": "draft", "start_s": 0.0, "end_s": 2.0, "sequences": 1}\n'
        '{"node": "a", "kind": "draft", "start_s": 3.0, "end_s": 5.0, "sequences": 1}\n'
        '{"node": "a", "kind"'  # the process was killed here
    )
    assert busy(read(tmp_path), 1.0, 5.0) == {"a": 0.75}
