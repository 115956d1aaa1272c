"""Workers out of the pool: an operator's drains and quarantines carried out, kept up over restarts, and ended."""

from prorsa.cluster.executor import Actions, Executor
from prorsa.cluster.registry import Registry
from prorsa.control.overrides import Overrides
from prorsa.errors import RefusedError


class Absences:
    """Takes workers out and brings them back, as the overrides say.

    A worker that is still on its way out when it may come back does so once it is out.
    """

    def __init__(self, registry: Registry, executor: Executor, overrides: Overrides) -> None:
        self._registry = registry
        self._executor = executor
        self._overrides = overrides
        self._returning: dict[str, str] = {}

    def begin(self, worker_id: str, t_ns: int) -> Actions:
        """Start to take a worker out: one that an operator has just named, or that has registered afresh since."""
        entry, worker = self._overrides.out(worker_id), self._registry.get(worker_id)
        if entry is None or worker is None or not worker.serving or worker_id in self._executor:
            return Actions()
        self._returning.pop(worker_id, None)
        reason = f"{entry.kind} by {entry.owner}: {entry.reason}"
        return self._executor.take_out(worker, empty=entry.kind == "drain", reason=reason, t_ns=t_ns)

    def check_return(self, worker_id: str) -> None:
        """Whether a worker may come back now.

        Raises:
            RefusedError: if it is not out of the pool, or gone.
        """
        worker = self._registry.get(worker_id)
        state = "unknown" if worker is None else worker.state
        if state == "dead":
            raise RefusedError(f"{worker_id} is dead: it serves again once it registers")
        if state != "quarantined" and self._overrides.out(worker_id) is None:
            raise RefusedError(f"{worker_id} is {state}: there is nothing to readmit")

    def end(self, worker_id: str, reason: str) -> None:
        """A worker may come back, as soon as it can."""
        self._returning[worker_id] = reason

    def advance(self, t_ns: int) -> Actions:
        """Bring back who may come back and is ready for it."""
        actions = Actions()
        for worker_id, reason in list(self._returning.items()):
            worker = self._registry.get(worker_id)
            if worker is not None and worker.switching:
                continue
            del self._returning[worker_id]
            if worker is not None and worker.state == "quarantined":
                actions.add(self._executor.bring_back(worker, reason=reason, t_ns=t_ns))
        return actions
