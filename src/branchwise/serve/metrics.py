"""The engine's numbers for Prometheus.

Names that vLLM has are vLLM's, so that its dashboards work; the rest are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ..decode.engine import Engine
from ..decode.engine_statistics import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class EngineCollector(Collector):
    """Reads the engine's counters when Prometheus asks.

    Args:
        engine: whose.
        model_name: the label of every number.
        responses: HTTP responses by route and status, counted by the server.
    """

    def __init__(self, engine: Engine, model_name: str, responses: Counter[tuple[str, int]]) -> None:
        self._engine = engine
        self._model_name = model_name
        self._responses = responses

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """All numbers."""
        counts = self._engine.statistics
        yield self._gauge("vllm:num_requests_running", "Requests in the forward.", counts.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue.", counts.waiting)
        yield self._counter("vllm:num_preemptions", "Times a request had to make room.", counts.preemptions)
        yield self._counter("vllm:prompt_tokens", "Tokens of prompts.", counts.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Generated tokens.", counts.generated_tokens)
        yield self._counter("vllm:spec_decode_num_drafts", "Trees with drafted nodes.", counts.drafts)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Drafted nodes.", counts.draft_tokens)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Accepted nodes.", counts.accepted_tokens)
        yield self._by_depth()
        yield self._by_end()
        yield self._histogram(
            "vllm:time_to_first_token_seconds", "From the request to its first token.", counts.time_to_first_token
        )
        yield self._histogram(
            "vllm:inter_token_latency_seconds", "Between two runs of tokens of one request.", counts.gaps
        )
        yield self._gauge("branchwise:num_requests_reading", "Requests whose prompt is read.", counts.reading)
        yield self._counter("branchwise:steps", "Forwards over trees.", counts.steps)
        yield self._counter("branchwise:reused_prompt_tokens", "Prompt tokens copied, not read.", counts.reused_tokens)
        yield self._counter("branchwise:refused_requests", "Requests refused: the queue was full.", counts.refused)
        yield self._gauge("branchwise:pool_blocks", "Blocks of the lane pool.", self._engine.pool.blocks)
        yield self._gauge("branchwise:prefix_bytes", "Bytes of kept prompt prefixes.", self._engine.prefixes.nbytes)
        yield self._by_response()

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _by_depth(self) -> CounterMetricFamily:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        family = CounterMetricFamily(name, "Accepted nodes by depth, 0 first.", labels=["model_name", "position"])
        for depth, count in enumerate(self._engine.statistics.accepted_by_depth):
            family.add_metric([self._model_name, str(depth)], count)
        return family

    def _by_end(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "vllm:request_success", "Ended requests by reason.", labels=["model_name", "finished_reason"]
        )
        for reason, count in dict(self._engine.statistics.finished).items():
            family.add_metric([self._model_name, reason], count)
        return family

    def _by_response(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "branchwise:http_responses", "HTTP responses.", labels=["model_name", "route", "status"]
        )
        for (route, status), count in dict(self._responses).items():
            family.add_metric([self._model_name, route, str(status)], count)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
        buckets, seen = [], 0
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), list(histogram.counts), strict=True):
            seen += count
            buckets.append((bound, seen))
        family = HistogramMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], buckets, histogram.total)
        return family


def render(collector: EngineCollector) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
