"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.pipelines import Statistics
from outrider.pipelines.engine.backend import Backend

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
COMPLETED, CANCELLED, TIMED_OUT, FAILED, REFUSED = "completed", "cancelled", "timed_out", "failed", "refused"


class Metrics:
    """Counters of requests and answers, and gauges of the backend's present load."""

    def __init__(self, backend: Backend) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_LoadCollector(backend))
        self.requests = self._counter("requests", "Requests by outcome.", "outcome")
        for outcome in (COMPLETED, CANCELLED, TIMED_OUT, FAILED, REFUSED):
            self.requests.labels(outcome)
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._cached = self._counter("cached_prompt_tokens", "Prompt tokens reused from the cache.")
        self._written = self._counter("generated_tokens", "Generated tokens.")
        self._drafted = self._counter("drafted_tokens", "Drafted tokens.", "drafter")
        self._accepted = self._counter("accepted_tokens", "Accepted draft tokens.", "drafter")
        self._first = Histogram(
            "outrider_time_to_first_token_seconds",
            "Time from the arrival of a request at the engine to its first token.",
            buckets=SECONDS,
            registry=self._registry,
        )

    def observe(self, stats: Statistics) -> None:
        """Count an answer that has ended, whatever the outcome."""
        self._prompt.inc(stats.prompt_tokens)
        self._cached.inc(stats.cached_tokens)
        self._written.inc(stats.new_tokens)
        for drafter, count in stats.drafted_by.items():
            self._drafted.labels(drafter).inc(count)
        for drafter, count in stats.accepted_by.items():
            self._accepted.labels(drafter).inc(count)
        if stats.ttft_s is not None:
            self._first.observe(stats.ttft_s)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"outrider_{name}", meaning, labels, registry=self._registry)


class _LoadCollector(Collector):
    """Reads the backend's load at each scrape."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterable[Metric]:
        load = self._backend.load
        yield GaugeMetricFamily("outrider_answers_waiting", "Answers in the queue.", load.waiting)
        yield GaugeMetricFamily("outrider_answers_running", "Answers being generated.", load.running)
        yield CounterMetricFamily("outrider_passes", "Forward passes of the target model.", load.passes)
        if load.cache_used is not None:
            yield GaugeMetricFamily("outrider_cache_used_ratio", "Share of the cache in use.", load.cache_used)
