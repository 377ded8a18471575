"""Prometheus metrics of a receiver. Needs the extra `metrics`; nothing else imports this.

Counters and histograms come from the report of each refit, gauges from the receiver's status
at the moment that somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, get_args

from weightstore.receiver.receiver_status import ReceiverStatus, StateName
from weightstore.receiver.reports import RefitFailure, Report

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
except ImportError as error:
    raise ImportError("metrics need prometheus-client: install weightstore[metrics]") from error


class Observed(Protocol):
    """The part of a receiver that metrics are made from."""

    def status(self) -> ReceiverStatus:
        """Everything that is known of it now."""
        ...

    def on_report(self, callback: Callable[[Report], None], /) -> None:
        """Tell of each refit."""
        ...


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric, as the documentation lists it.

    Attributes:
        name: As it is exposed; a counter's ends in `_total`.
        kind: `counter`, `histogram` or `gauge`.
        labels: Their names.
        help: What it counts, with its unit.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


REFITS = MetricSpec(
    "weightstore_refits_total", "counter", ("way", "redo"), "Refits that ended without an error."
)
FAILURES = MetricSpec(
    "weightstore_refit_failures_total",
    "counter",
    ("code",),
    "Refits that an error ended, by its code; `other` for one that is not of this package.",
)
OTHER_CODE = "other"
SECONDS = MetricSpec(
    "weightstore_refit_phase_seconds",
    "histogram",
    ("phase",),
    "Seconds of each phase of a refit, done or failed.",
)
BYTES = MetricSpec(
    "weightstore_refit_bytes_total",
    "counter",
    ("kind",),
    "Bytes read, decoded, written, skipped; and of full loads in their place.",
)
UNITS = MetricSpec(
    "weightstore_refit_units_total", "counter", (), "Units that were written to live memory."
)
LAUNCHES = MetricSpec(
    "weightstore_refit_launches_total", "counter", (), "Writes that live memory saw."
)
READY = MetricSpec(
    "weightstore_receiver_ready", "gauge", (), "1 if a serving block could begin now, else 0."
)
STATE = MetricSpec(
    "weightstore_receiver_state", "gauge", ("state",), "1 for the state of the live weights."
)
VERSION = MetricSpec(
    "weightstore_receiver_version",
    "gauge",
    ("which",),
    "Version that is live, staged, newest or active; left out where there is none.",
)
LAG = MetricSpec(
    "weightstore_receiver_lag_versions",
    "gauge",
    (),
    "Versions that the live one is behind the newest; left out where either is unknown.",
)
TAIL_AGE = MetricSpec(
    "weightstore_receiver_tail_age_seconds",
    "gauge",
    (),
    "Seconds since the last look at the log; left out before the first.",
)
METRICS = (
    REFITS,
    FAILURES,
    SECONDS,
    BYTES,
    UNITS,
    LAUNCHES,
    READY,
    STATE,
    VERSION,
    LAG,
    TAIL_AGE,
)
"""Every metric, in the order of the documentation."""

SECONDS_BOUNDS = (
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0,
)  # fmt: skip
"""Of the histogram: pauses are milliseconds, full loads minutes."""


class ReceiverMetrics:
    """Metrics of one receiver, from the moment that this is made.

    Args:
        receiver: Whose.
        registry: Where to register them; None makes one, so that nothing else is in it. One
            registry takes one receiver.

    Attributes:
        registry: Where they are.
        content_type: Of `text`.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, receiver: Observed, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._receiver = receiver
        self._refits = _counter(REFITS, self.registry)
        self._failures = _counter(FAILURES, self.registry)
        self._bytes = _counter(BYTES, self.registry)
        self._units = _counter(UNITS, self.registry)
        self._launches = _counter(LAUNCHES, self.registry)
        self._seconds = Histogram(
            SECONDS.name,
            SECONDS.help,
            SECONDS.labels,
            registry=self.registry,
            buckets=SECONDS_BOUNDS,
        )
        self.registry.register(_StatusCollector(receiver))
        receiver.on_report(self.observe)

    def observe(self, report: Report) -> None:
        """Count one refit; the receiver calls this."""
        if isinstance(report, RefitFailure):
            # An error of a callback may be of any class, and each label is kept for ever.
            code = report.error_code
            self._failures.labels(code if code.startswith("WS-") else OTHER_CODE).inc()
        else:
            self._refits.labels(report.way.value, str(report.is_redo).lower()).inc()
        for phase, seconds in report.seconds.items():
            self._seconds.labels(phase.value).observe(seconds)
        for each in fields(report.size_bytes):
            self._bytes.labels(each.name).inc(getattr(report.size_bytes, each.name))
        self._units.inc(report.applied_count)
        self._launches.inc(report.launch_count)

    def text(self) -> bytes:
        """All metrics of the registry in the text format that Prometheus reads."""
        return generate_latest(self.registry)


class _StatusCollector:
    """Gauges of a receiver's status, read when they are asked for."""

    def __init__(self, receiver: Observed) -> None:
        self._receiver = receiver

    def describe(self) -> Iterator[Metric]:
        """Names alone, so that registering asks the receiver nothing."""
        for spec in (READY, STATE, VERSION, LAG, TAIL_AGE):
            yield _gauge(spec)

    def collect(self) -> Iterator[Metric]:
        """The status now."""
        status = self._receiver.status()
        yield _filled(READY, [((), float(status.is_ready))])
        states = [((name,), float(name == status.state)) for name in get_args(StateName)]
        yield _filled(STATE, states)
        versions = {
            "live": status.live.version if status.live else None,
            "staged": status.staged.version if status.staged else None,
            "newest": status.newest,
            "active": status.active,
        }
        yield _filled(VERSION, [((which,), version) for which, version in versions.items()])
        yield _filled(LAG, [((), status.lag)])
        yield _filled(TAIL_AGE, [((), status.tail_age_s)])


def _counter(spec: MetricSpec, registry: CollectorRegistry) -> Counter:
    return Counter(spec.name, spec.help, spec.labels, registry=registry)


def _gauge(spec: MetricSpec) -> GaugeMetricFamily:
    return GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)


def _filled(
    spec: MetricSpec, samples: Sequence[tuple[tuple[str, ...], float | None]]
) -> GaugeMetricFamily:
    """A gauge with the samples that have a value."""
    family = _gauge(spec)
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family
