"""Metrics: each refit counted once, gauges of the moment, and the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weightstore.errors import VersionNotFoundError
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Phase, Tally
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.virtual_time import VirtualClock

pytest.importorskip("prometheus_client", reason="needs the metrics extra")

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from weightstore.receiver.metrics import METRICS, ReceiverMetrics

PAGE = Path(__file__).parents[3] / "docs/guide/observe.md"
Labels = dict[str, str]


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 3)


def metered(
    lab: ReceiverLab, settings: ReceiverSettings | None = None
) -> tuple[Receiver, ReceiverMetrics]:
    receiver, _ = lab.host_receiver(settings)
    return receiver, ReceiverMetrics(receiver)


def value(metrics: ReceiverMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_refit_is_counted_by_its_way_with_every_byte(lab: ReceiverLab) -> None:
    receiver, metrics = metered(lab)
    reports = [receiver.refit(1), receiver.refit(3), receiver.refit(3)]
    for way, count in (("full", 1), ("change", 1), ("nothing", 1)):
        assert value(metrics, "weightstore_refits_total", way=way, redo="false") == count
    for kind in ("wire", "decoded", "applied", "skipped", "full"):
        expected = sum(getattr(report.size_bytes, kind) for report in reports)
        assert value(metrics, "weightstore_refit_bytes_total", kind=kind) == expected
    applied_count = sum(report.applied_count for report in reports)
    assert value(metrics, "weightstore_refit_units_total") == applied_count
    launch_count = sum(report.launch_count for report in reports)
    assert value(metrics, "weightstore_refit_launches_total") == launch_count
    for phase in Phase:
        count = sum(phase in report.seconds for report in reports)
        found = value(metrics, "weightstore_refit_phase_seconds_count", phase=phase.value)
        assert (found or 0) == count, phase


def test_a_failure_is_counted_by_its_code(lab: ReceiverLab) -> None:
    receiver, metrics = metered(lab)
    with pytest.raises(VersionNotFoundError):
        receiver.refit(99)
    code = VersionNotFoundError.code
    assert value(metrics, "weightstore_refit_failures_total", code=code) == 1
    assert value(metrics, "weightstore_refits_total", way="full", redo="false") is None


def test_gauges_are_of_the_moment_and_absent_where_nothing_is_known(lab: ReceiverLab) -> None:
    receiver, metrics = metered(lab)
    version = "weightstore_receiver_version"
    assert value(metrics, "weightstore_receiver_ready") == 0
    assert value(metrics, "weightstore_receiver_state", state="empty") == 1
    assert value(metrics, version, which="live") is None
    assert value(metrics, "weightstore_receiver_lag_versions") is None
    assert value(metrics, "weightstore_receiver_tail_age_seconds") is None
    receiver.refit(2)
    receiver.stage(3)
    assert value(metrics, "weightstore_receiver_ready") == 1
    assert value(metrics, "weightstore_receiver_state", state="empty") == 0
    assert value(metrics, "weightstore_receiver_state", state="whole") == 1
    which = {name: value(metrics, version, which=name) for name in ("live", "staged", "newest")}
    assert which == {"live": 2, "staged": 3, "newest": 3}
    assert value(metrics, "weightstore_receiver_lag_versions") == 1
    assert value(metrics, "weightstore_receiver_tail_age_seconds") == 0
    receiver.invalidate()
    assert value(metrics, "weightstore_receiver_ready") == 0
    assert value(metrics, "weightstore_receiver_state", state="dirty") == 1
    assert value(metrics, version, which="live") is None


def test_a_registry_is_the_users_if_given_and_its_own_otherwise(lab: ReceiverLab) -> None:
    registry = CollectorRegistry()
    receiver, _ = lab.host_receiver()
    assert ReceiverMetrics(receiver, registry).registry is registry
    # Two receivers of one process do not meet.
    first, second = metered(lab)[1], metered(lab)[1]
    assert first.registry is not second.registry


def test_the_text_is_what_prometheus_reads_and_holds_every_metric(lab: ReceiverLab) -> None:
    receiver, metrics = metered(lab)
    receiver.refit(2)
    with pytest.raises(VersionNotFoundError):
        receiver.refit(99)
    families = {
        family.name: family for family in text_string_to_metric_families(metrics.text().decode())
    }
    for spec in METRICS:
        family = families[spec.name.removesuffix("_total")]
        assert family.type == spec.kind
        assert family.documentation == spec.help
        names = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert names == set(spec.labels), spec.name
    created = {name for name in families if name.endswith("_created")}
    assert len(families) - len(created) == len(METRICS)
    assert metrics.content_type.startswith("text/plain")


def test_errors_that_are_not_ours_share_one_label(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver()
    metrics = ReceiverMetrics(receiver)
    for number in range(3):
        error = type(f"Fault{number}", (Exception,), {})()
        metrics.observe(Tally(VirtualClock()).failure(1, 2, error, full_bytes=0))
    assert value(metrics, "weightstore_refit_failures_total", code="other") == 3


def test_the_page_lists_what_the_code_has() -> None:
    rows = re.findall(
        r"(?m)^\| `(weightstore_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$",
        PAGE.read_text(encoding="utf-8"),
    )
    listed = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), text.strip())
        for name, kind, labels, text in rows
    ]
    assert listed == [(spec.name, spec.kind, spec.labels, spec.help) for spec in METRICS]
