"""What is counted of memory and outputs belongs to one proof."""

from unittest.mock import MagicMock

from control_kit import routing_lever

from trimtab.runtime.control import Control
from trimtab.runtime.equality import EqualityCounts, EqualityProbe

RECORD = routing_lever()


def test_verification_is_not_judged_by_what_another_lever_was_counted_for() -> None:
    """Outputs that differed and peaks of memory are dropped when another proof begins, and kept while it lasts."""
    system = MagicMock()
    system.fleet.replica_ids.return_value = ("r0", "r1")
    system.processes.memory_bytes.return_value = 9_000
    control = Control(system, MagicMock())
    control._equality = EqualityProbe(MagicMock(), MagicMock(), MagicMock())
    control.controller.proof = MagicMock()
    control.begin_proof()
    control._equality.counts = EqualityCounts(n=12, candidate_differs=12)
    system.processes.memory_bytes.return_value = 1_000
    first = control._extras(RECORD, ("r1",))
    assert (first.outputs_differ, first.memory_bytes_candidate) == (12, 9_000.0)
    control.controller.proof = MagicMock()
    second = control._extras(RECORD, ("r1",))
    assert (second.outputs_differ, second.outputs_n) == (0, 0)
    assert second.memory_bytes_candidate == 1_000.0
