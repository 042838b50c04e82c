"""Check that the queries of `deploy/` use the series of /metrics."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from app.config import ROOT
from app.metrics import METRICS, PREFIX

DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
BOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "paceline.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


def known() -> set[str]:
    """Return the documented names of series (`tests/web/ops/test_metrics.py` checks the documents)."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    gauges = set(re.findall(r"`(paceline_\w+)`", text))
    histograms = {PREFIX + metric.name for metric in METRICS.values() if metric.buckets}
    return gauges - histograms | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def test_alerts_and_panels_use_existing_series() -> None:
    asked = {
        name for query in (*QUERIES, *(rule["expr"] for rule in RULES)) for name in re.findall(r"paceline_\w+", query)
    }
    assert asked <= known(), asked - known()


def test_queries_use_existing_labels() -> None:
    labels = {label for metric in METRICS.values() for label in metric.labels}
    labels |= {"le", "stage", "kind", "missing", "field", "node", "outcome", "drafter", "confidence", "job"}
    queries = (*QUERIES, *(rule["expr"] for rule in RULES))
    grouped = {
        label.strip()
        for query in queries
        for group in re.findall(r"(?:by|on) \(([^)]*)\)", query)
        for label in group.split(",")
    }
    matched = {label for query in queries for label in re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query)}
    assert (grouped | matched) - {""} <= labels


def test_all_metrics_are_on_the_dashboard() -> None:
    shown = " ".join(QUERIES)
    assert [name for name in METRICS if PREFIX + name not in shown] == []


def test_each_alert_has_a_severity_and_a_description() -> None:
    for rule in RULES:
        assert rule["alert"].startswith("Paceline") and rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    subprocess.run(["promtool", "check", "config", str(DEPLOY / "prometheus.yml")], check=True, capture_output=True)
