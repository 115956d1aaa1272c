"""Publishers that die while the hub cannot keep up with them must not take it along."""

import subprocess
import sys
import time
from pathlib import Path

from tests.bus.conftest import HubProcess

_FLOOD = """
import sys
from prorsa.bus.publisher import Publisher
from prorsa.events import LlmFirstToken
publisher = Publisher(sys.argv[1], "flood")
event = LlmFirstToken(rid="r" * 200 + ".00")
while True:
    publisher.publish(event)
"""
KILLS = 6


def test_publishers_killed_under_back_pressure_leave_the_hub_alive(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path)
    endpoint = hub.start().ingest

    def flood() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", _FLOOD, endpoint])

    floods = [flood() for _ in range(3)]
    try:
        for kill in range(KILLS):
            time.sleep(0.7)
            victim = floods[kill % len(floods)]
            victim.kill()
            victim.wait()
            floods[kill % len(floods)] = flood()
            assert hub.alive
    finally:
        for process in floods:
            process.kill()
            process.wait()
    hub.stop()
