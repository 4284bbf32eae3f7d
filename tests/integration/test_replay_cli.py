"""`trimtab replay`: a ledger decided again, one that was made up and one that a gateway wrote."""

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from events_kit import SteppingClock, request
from fake_engine import FakeEngine
from harness import COST, Harness, chat
from sim_kit import recorded_day

from trimtab.core.events import AnyEvent, Calibrated
from trimtab.interfaces.cli import main
from trimtab.runtime.ledger import SqliteLedger
from trimtab.sim.public_policies import PUBLIC
from trimtab.sim.replay import Replayed


def keep(path: Path, events: Iterable[AnyEvent]) -> Path:
    """Write events into a ledger."""
    sink = SqliteLedger(path, clock=SteppingClock())
    for event in events:
        sink.append(event, cause_id=None)
    sink.close()
    return path


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of 24 requests under prefix_affine."""
    return keep(tmp_path_factory.mktemp("day") / "ledger.sqlite", recorded_day(24))


def run(path: Path, *arguments: str) -> Result:
    """Run the command on a ledger."""
    return CliRunner().invoke(main, ["replay", str(path), *arguments])


def read(result: Result) -> Replayed:
    """What --json printed, as its type."""
    return msgspec.json.decode(result.stdout, type=Replayed)


def test_recorded_policy_comes_out_as_recorded(ledger: Path) -> None:
    """Exit code 0: every decision stays, and each is made again from what the ledger keeps."""
    ended = run(ledger, "--policy", "prefix_affine", "--json")
    assert ended.exit_code == 0, ended.output
    found = read(ended)
    assert (found.same, found.different, found.left_out) == (24, 0, 0)
    assert found.faithful == found.refaithful == 24


def test_changed_policy_shows_where_it_differs(ledger: Path) -> None:
    """Exit code 1; every differing request with both replicas and the predicted difference."""
    ended = run(ledger, "--policy", "round_robin")
    assert ended.exit_code == 1
    found = read(run(ledger, "--policy", "round_robin", "--json"))
    text = " ".join(ended.stdout.split())
    assert f"round_robin: {found.different} of 24 decisions differ" in text
    assert "under the policy of its time 24 of 24 come out as recorded" in text
    assert "recorded under: prefix_affine 24" in text
    for one in found.differing[:20]:
        assert any(
            one.request_id in row and f"{one.extra_ms:+,.1f}" in row
            for row in ended.stdout.splitlines()
        )


def test_policy_file_changes_a_bound(ledger: Path, tmp_path: Path) -> None:
    """The same policy with a load bound of 1 leaves holders that are busier than the mean."""
    tight = tmp_path / "tight.toml"
    tight.write_text('[routing]\npolicy = "prefix_affine"\nload_bound = 1.0\n')
    found = read(run(ledger, "--policy", str(tight), "--json"))
    loose = read(run(ledger, "--policy", "prefix_affine", "--json"))
    assert found.different > loose.different == 0


def test_other_sections_of_a_policy_file_are_said_not_to_be_replayed(
    ledger: Path, tmp_path: Path
) -> None:
    """Nobody takes the answer for one about local prefill; routing is decided as without them."""
    both = tmp_path / "both.toml"
    both.write_text('[routing]\nload_bound = 1.0\n[local_prefill]\nmode = "remote"\n')
    told = " ".join(run(ledger, "--policy", str(both)).stdout.split())
    assert "not replayed: [local_prefill]; only where requests go is decided again" in told
    tight = tmp_path / "tight.toml"
    tight.write_text("[routing]\nload_bound = 1.0\n")
    with_it, without = (read(run(ledger, "--policy", str(one), "--json")) for one in (both, tight))
    assert with_it.not_replayed == ("local_prefill",)
    assert msgspec.structs.replace(with_it, not_replayed=()) == without


def test_ledger_without_requests_decides_nothing_and_says_so(tmp_path: Path) -> None:
    """Nothing stays the same where nothing is: exit code 4, in words and as JSON."""
    path = keep(tmp_path / "ledger.sqlite", recorded_day(0))
    ended = run(path, "--policy", "round_robin")
    assert ended.exit_code == 4
    assert "nothing to decide again, the ledger has no request" in " ".join(ended.output.split())
    as_json = run(path, "--policy", "round_robin", "--json")
    assert (as_json.exit_code, read(as_json).requests) == (4, 0)


def test_ledger_whose_requests_were_not_kept_whole_decides_nothing_either(tmp_path: Path) -> None:
    """Requests are counted, and none can be decided again."""
    path = keep(tmp_path / "ledger.sqlite", [request(1), request(2)])
    ended = run(path, "--policy", "round_robin")
    assert ended.exit_code == 4
    assert "none of 2 requests was kept with the whole fleet" in " ".join(ended.output.split())


@pytest.mark.parametrize("policy", sorted(PUBLIC))
def test_public_policies_can_decide_a_recorded_day(ledger: Path, policy: str) -> None:
    """Each decides every request."""
    found = read(run(ledger, "--policy", policy, "--json"))
    assert (found.policy, found.same + found.different) == (policy, 24)


@pytest.mark.parametrize("policy", ["round_robin", "prefix_affine", "least_loaded"])
async def test_day_that_a_gateway_served_replays_to_the_same_decisions(
    tmp_path: Path, policy: str
) -> None:
    """Through the live router, its index and its load, into a ledger and back: not one decision differs."""
    engines = [FakeEngine(cached_tokens=5), FakeEngine(cached_tokens=5), FakeEngine()]
    async with Harness(*engines) as fleet:
        fleet.router.plan = msgspec.structs.replace(fleet.router.plan, policy=policy)
        for number in range(18):
            body = chat(f"{'the same beginning of a long story ' * 20} and then {number % 4}")
            await fleet.post(body, X_Trimtab_Session=f"s{number % 5}")
        await fleet.record(of=18)
        events = [Calibrated(revision="fake-1", cost=COST), *fleet.served]
    path = keep(tmp_path / "ledger.sqlite", events)
    ended = run(path, "--policy", policy, "--json")
    assert ended.exit_code == 0, ended.output
    found = read(ended)
    assert found.by_policy == {policy: 18}
    assert found.faithful == found.refaithful == found.same == 18
    other = "round_robin" if policy == "prefix_affine" else "prefix_affine"
    assert read(run(path, "--policy", other, "--json")).different > 0


def test_unknown_policy_ends_with_1_and_lists_those_that_are_known(ledger: Path) -> None:
    """No decision is made."""
    ended = run(ledger, "--policy", "fifo")
    assert (ended.exit_code, "prefix_affine" in ended.output) == (1, True)


def test_wrong_policy_file_is_named_with_line_and_field(ledger: Path, tmp_path: Path) -> None:
    """As in a scenario."""
    bad = tmp_path / "bad.toml"
    bad.write_text("[routing]\nload_bound = 0.5\n")
    ended = run(ledger, "--policy", str(bad))
    assert ended.exit_code == 1
    assert "line 2: Expected `float` >= 1.0 - at `$.routing.load_bound`" in " ".join(
        ended.output.split()
    )


def test_policy_must_be_said(ledger: Path) -> None:
    """Wrong usage."""
    assert run(ledger).exit_code == 2


def test_file_that_is_no_ledger_ends_with_1(tmp_path: Path) -> None:
    """One line that names it."""
    other = tmp_path / "notes.sqlite"
    other.write_text("no database at all, only words " * 50)
    ended = run(other, "--policy", "round_robin")
    assert (ended.exit_code, "notes.sqlite" in ended.output) == (1, True)
    assert "Traceback" not in ended.output


def test_json_is_one_document(ledger: Path) -> None:
    """Other programs read it whole."""
    found = json.loads(run(ledger, "--policy", "round_robin", "--json").stdout)
    assert found.keys() >= {"same", "different", "differing", "extra_ms_mean", "left_out"}
