"""The router's Prometheus metrics, in a registry of its own so that several routers fit into one process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counters and gauges; names start with ``prorsa_router_``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "prorsa_router_requests", "Requests answered, by kind and end", ["kind", "end"], registry=self.registry
        )
        self.retries = Counter(
            "prorsa_router_retries", "Attempts after the first, by cause", ["cause"], registry=self.registry
        )
        self.tokens_kept = Counter(
            "prorsa_router_tokens_kept", "Output tokens carried over by resumed requests", registry=self.registry
        )
        self.rejected = Counter("prorsa_router_rejected", "Requests turned away with 503", registry=self.registry)
        self.latency_s = Histogram(
            "prorsa_router_request_seconds", "Arrival to answer", buckets=_SECONDS, registry=self.registry
        )
        self.queued = Gauge("prorsa_router_queued", "Requests in the ready queue", registry=self.registry)
        self.in_flight = Gauge("prorsa_router_in_flight", "Attempts on workers", registry=self.registry)
        self.workers = Gauge(
            "prorsa_router_workers", "Workers, by role and state", ["role", "state"], registry=self.registry
        )
        self.pairs = Gauge("prorsa_router_proven_pairs", "Pairs that a canary has passed", registry=self.registry)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
