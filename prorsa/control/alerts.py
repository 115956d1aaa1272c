"""Alerts: raised once when something begins, cleared once (severity ``info``) when it ends."""

from prorsa.cluster.registry import Registry
from prorsa.control.config import ControlConfig
from prorsa.control.overrides import Overrides
from prorsa.events import Alert, Decision, Severity, ShadowDecision, WorkerDown, WorkerUp

_OVERLOAD_AFTER = 3
"""Decisions in a row that must find the pool overloaded before it is an alert: one burst is none."""


class Alerts:
    """The alerts in force, by code."""

    def __init__(self) -> None:
        self._active: dict[str, Alert] = {}
        self._overloads = 0

    def active(self) -> tuple[Alert, ...]:
        """All in force, the longest standing first."""
        return tuple(self._active.values())

    def worker(self, event: WorkerUp | WorkerDown) -> list[Alert]:
        """A worker has come or gone."""
        code = f"worker-down:{event.worker_id}"
        if isinstance(event, WorkerDown):
            text = f"{event.worker_id} is down: {event.reason or 'unknown why'}"
            return self._raise(code, "critical", text, event.worker_id)
        cleared = self._clear(code, f"{event.worker_id} is back as {event.role}", event.worker_id)
        return cleared + self._clear(f"quarantined:{event.worker_id}", f"{event.worker_id} is back", event.worker_id)

    def tick(self, registry: Registry, overrides: Overrides, config: ControlConfig, t_ns: int) -> list[Alert]:
        """Look for workers whose telemetry is stale or that a failed flip has put into quarantine."""
        alerts: list[Alert] = []
        for worker in registry:
            name, age_s = worker.worker_id, worker.age_s(t_ns)
            if worker.state == "quarantined" and overrides.out(name) is None:
                text = f"{name} is quarantined after a failed flip: restart it, or readmit it"
                alerts += self._raise(f"quarantined:{name}", "critical", text, name)
            elif worker.serving:
                alerts += self._clear(f"quarantined:{name}", f"{name} serves again", name)
            if worker.state != "dead" and age_s is not None and age_s > config.stale_s:
                alerts += self._raise(f"stale:{name}", "warning", f"{name} has stopped reporting its load", name)
            elif age_s is not None:
                alerts += self._clear(f"stale:{name}", f"{name} reports again", name)
        return alerts

    def overload(self, decision: Decision, *, overloaded: bool) -> list[Alert]:
        """The demand exceeds the pool under every split, decision after decision."""
        self._overloads = self._overloads + 1 if overloaded else 0
        if self._overloads >= _OVERLOAD_AFTER:
            return self._raise("overload", "warning", f"demand exceeds the pool: {decision.reason}", None)
        return [] if overloaded else self._clear("overload", "demand fits the pool again", None)

    def shadow(self, said: ShadowDecision) -> list[Alert]:
        """The policy in shadow could not decide; or it can again."""
        if said.chosen is None:
            return self._raise("shadow-failed", "warning", f"{said.policy} in shadow: {said.reason}", None)
        return self._clear("shadow-failed", f"{said.policy} in shadow decides again", None)

    def no_shadow(self) -> list[Alert]:
        """No policy decides in shadow any more."""
        return self._clear("shadow-failed", "the policy in shadow is off", None)

    def _raise(self, code: str, severity: Severity, text: str, worker_id: str | None) -> list[Alert]:
        if code in self._active:
            return []
        self._active[code] = Alert(code=code, severity=severity, text=text, worker_id=worker_id)
        return [self._active[code]]

    def _clear(self, code: str, text: str, worker_id: str | None) -> list[Alert]:
        if self._active.pop(code, None) is None:
            return []
        return [Alert(code=code, severity="info", text=text, worker_id=worker_id)]
