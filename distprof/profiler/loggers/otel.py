"""Live metrics as OpenTelemetry gauges, through whatever the script or OpenTelemetry's own environment has set up.

Nothing leaves the process by itself: a provider that the script has set is used, also one that it sets later; without
one, an endpoint in ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`` gets the metrics.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from distprof.facts.arrays import FloatArray
from distprof.profiler.loggers.logger_thread import LoggedJob
from distprof.profiler.metrics.metrics import list_gauges

ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CLOSE_LIMIT_S = 2.0
"""How long the end of a job waits for an endpoint."""
_EXPORTERS = {"http/protobuf": "http", "grpc": "grpc"}
_UNITS = {"_seconds": "s", "_ratio": "1", "_bytes": "By"}


class OpenTelemetryLogger:
    """Sets a gauge for each metric that Prometheus would get, in seconds and shares, to the value of the last point."""

    def __init__(self, job: LoggedJob) -> None:
        from opentelemetry import metrics

        self._points, self._gauges = job.make_points(), dict[str, Any]()
        self._about = {"distprof.run.name": job.meta.name, "distprof.run.id": job.meta.run_id}
        current = metrics.get_meter_provider()  # before one is set, a stand-in that passes on to it later
        self._provider = _make_provider(current)
        self._meter = (self._provider or current).get_meter("distprof")
        if self._provider is None and not _is_real(current):
            job.print_line(
                f"distprof: otel: no provider of metrics is set up so far, and no {ENDPOINTS[1]}: nothing is exported "
                "unless the script sets one"
            )

    def log(self, rows: FloatArray) -> None:
        for point in self._points.add(rows):
            self._set("last_step", point["step"])
            for name, labels, value in list_gauges(point):
                self._set(name, value, **labels)

    def close(self) -> None:
        if self._provider is not None:  # one of the script's stays as it is
            self._provider.shutdown(timeout_millis=CLOSE_LIMIT_S * 1e3)

    def _set(self, name: str, value: float, **labels: str) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
            gauge = self._gauges[name] = self._meter.create_gauge(f"distprof.{name}", unit=unit)
        gauge.set(value, self._about | {key: str(label) for key, label in labels.items()})


def make_logger(job: LoggedJob) -> OpenTelemetryLogger:
    """Finds out where the metrics go."""
    return OpenTelemetryLogger(job)


def _make_provider(current: Any) -> Any:
    """A provider of our own, for an endpoint that the environment names. None: the script has set one, or none is."""
    if _is_real(current) or not any(map(os.environ.get, ENDPOINTS)):
        return None
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), "http/protobuf")
    if protocol not in _EXPORTERS:
        raise ValueError(f"{PROTOCOLS[1]}={protocol}: expected one of {', '.join(_EXPORTERS)}")
    exporter = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{_EXPORTERS[protocol]}.metric_exporter")
    return MeterProvider([PeriodicExportingMetricReader(exporter.OTLPMetricExporter())], shutdown_on_exit=False)


def _is_real(provider: Any) -> bool:
    """Whether somebody has set this provider: the interface has no such method."""
    return hasattr(provider, "force_flush")
