"""Rollouts in virtual time: the live machine, gates, triggers and fold, driven by simulated requests."""

import itertools

import msgspec
import pytest

from trimtab.core.events import (
    Envelope,
    GatesEvaluated,
    LeverProposed,
    RolloutMoved,
    TrafficPlanned,
    TriggerMoved,
    chain_hash,
    encode_event,
)
from trimtab.core.gate import Metric
from trimtab.core.lever import LeverRecordError
from trimtab.core.state import rebuild
from trimtab.core.types import RolloutState, Verdict
from trimtab.rollout.machine import TRANSITIONS
from trimtab.sim.lever_records import record_of, simulated
from trimtab.sim.run import SimResult, simulate
from trimtab.sim.scenario import ScenarioError, parse_scenario
from trimtab.sim.sections import CandidateSection, RolloutSection

TEXT = """name = "rolls out"
[replica]
kv_tokens = 20_000
block_tokens = 64
streams_max = 32
[replica.cost]
overhead_ms = 2.0
weights_ms = 8.0
token_ms = 0.1
stream_ms = 0.1
[fleet]
replicas = 4
[routing]
policy = "round_robin"
[rollout]
start_s = 20
peak_cycle_s = 40
block_s = 10
edge_s = 1
look_s = 5
shares = [0.25, 0.5]
CANDIDATE
[workload]
duration_s = 400
[workload.synthetic]
rate_per_s = 6
groups = 8
turns = 6
group_tokens = 1024
output_tokens = 40
think_s = 2
"""
AFFINE = 'policy = "prefix_affine"'


def rolled(candidate: str, *, seed: int = 1, **changes: str) -> tuple[SimResult, list[Envelope]]:
    """Simulate a rollout; `changes` replace lines of the text by their first word."""
    text = TEXT.replace("CANDIDATE", candidate)
    for name, line in changes.items():
        text = "\n".join(line if one.startswith(f"{name} =") else one for one in text.split("\n"))
    events: list[Envelope] = []
    scenario = parse_scenario(text, source="x.toml")
    run = simulate(scenario, scenario.routing.policy, seed=seed, on_event=events.append)
    return run, events


def test_routing_lever_that_gains_is_adopted_and_its_ledger_folds_to_that() -> None:
    """Proposed, canary, proving, adopted; every move is one of the table, every event has an earlier cause."""
    run, events = rolled(AFFINE)
    assert run.rollout is not None
    assert (run.rollout.state, run.rollout.share) == (RolloutState.ADOPTED, 1.0)
    moves = [one.event for one in events if isinstance(one.event, RolloutMoved)]
    assert moves[0].before is None
    for move in moves[1:]:
        assert move.before is not None
        assert move.after in TRANSITIONS[move.before]
    state = rebuild(events)
    lever = state.levers["simulated_lever"]
    assert (lever.state, lever.share) == (RolloutState.ADOPTED, 1.0)
    assert state.plan is not None
    assert (state.plan.policy, state.plan.candidate) == ("prefix_affine", None)
    assert (
        lever.effects["ttft_ms in all"].ratio < 0.9 if "ttft_ms in all" in lever.effects else True
    )
    known: set[str] = set()
    for one in events:
        assert one.cause_id is None or one.cause_id in known
        known.add(one.id)
    assert isinstance(events[0].event, LeverProposed)
    assert run.rollout.events == len(events)


def test_events_are_hash_linked_and_the_same_seed_gives_the_same_bytes() -> None:
    """As a live ledger is."""
    (first, events), (second, again) = rolled(AFFINE), rolled(AFFINE)
    assert msgspec.json.encode(events) == msgspec.json.encode(again)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    prev = "0" * 64
    for one in events:
        body = encode_event(one.event)
        linked = chain_hash(
            prev_hash=prev,
            seq=one.seq,
            event_id=one.id,
            cause_id=one.cause_id,
            at_s=one.at_s,
            body=body,
        )
        assert (one.prev_hash, one.hash) == (prev, linked)
        prev = linked
    assert first.rollout is not None
    assert first.rollout.head == prev


def test_candidate_that_harms_is_taken_back_while_the_slice_is_small() -> None:
    """A build whose steps take twice as long; its replica goes back and nobody meets it any more."""
    slower = "[rollout.candidate]\nslower = 2.0\nchange_s = 2"
    run, events = rolled(slower, policy='policy = "prefix_affine"')
    assert run.rollout is not None
    assert run.rollout.state is RolloutState.ROLLED_BACK
    assert run.rollout.moves[-1].verdict is Verdict.FAIL
    assert max(move.share for move in run.rollout.moves) <= 0.5
    plan = [one.event for one in events if isinstance(one.event, TrafficPlanned)][-1].plan
    assert (plan.candidate, plan.preferences) == (None, ())
    assert run.summary.failed == 0


def test_lever_without_an_effect_is_never_adopted() -> None:
    """The same policy on both sides shows no gain, so it holds."""
    run, _ = rolled('policy = "round_robin"', duration_s="duration_s = 240")
    assert run.rollout is not None
    assert run.rollout.state in {RolloutState.PROVING, RolloutState.ROLLED_BACK}
    assert RolloutState.ADOPTED not in {move.state for move in run.rollout.moves}


def test_no_move_but_a_pass_raises_the_share() -> None:
    """Holds and errors never promote."""
    run, _ = rolled(AFFINE)
    assert run.rollout is not None
    shares = [(0.0, None), *((move.share, move.verdict) for move in run.rollout.moves)]
    for (before, _), (share, verdict) in itertools.pairwise(shares[1:]):
        assert share <= before or verdict is Verdict.PASS


def test_adopted_lever_is_watched_and_taken_off_when_its_replica_turns_slow() -> None:
    """Drafts gain; later a fault makes the candidate's steps three times as long, and the trigger fires."""
    drafts = (
        "[rollout.candidate]\nchange_s = 1\n[rollout.candidate.speculation]\ndepth = 3\n"
        "[[rollout.candidate.speculation.acceptance]]\nby_position = [0.9, 0.8, 0.7]\n"
        '[[faults]]\nat_s = 330\nkind = "slow"\nreplica = 3\nfactor = 6\n'
    )
    run, events = rolled(
        drafts, policy='policy = "least_loaded"', look_s='look_s = 5\ngain = "tpot_ms"'
    )
    assert run.rollout is not None
    states = [move.state for move in run.rollout.moves]
    assert RolloutState.ADOPTED in states
    assert states[-1] is RolloutState.DISABLED
    fired = [one.event for one in events if isinstance(one.event, TriggerMoved)]
    assert fired[0].fired
    assert run.speculation is not None
    assert run.speculation.drafted > 0.0


def test_gates_that_a_simulation_cannot_answer_are_left_out_and_named() -> None:
    """Texts and memory are never passed by silence."""
    record, dropped = simulated(record_of(RolloutSection(policy="prefix_affine")))
    assert dropped == ("memory", "outputs")
    assert {gate.metric for gate in record.gates} & {
        Metric.MEMORY_BYTES,
        Metric.OUTPUT_DIFFERENCE,
    } == set()
    run, events = rolled(AFFINE)
    assert run.rollout is not None
    assert run.rollout.not_asked == dropped
    looked = [one.event for one in events if isinstance(one.event, GatesEvaluated)]
    assert {gate.gate for gate in looked[-1].results} & set(dropped) == set()


def test_record_without_a_gain_that_can_be_simulated_is_refused() -> None:
    """Nothing would prove the effect."""
    record = record_of(RolloutSection(candidate=CandidateSection()))
    only_memory = tuple(
        msgspec.structs.replace(gate, metric=Metric.MEMORY_BYTES) for gate in record.gates
    )
    with pytest.raises(LeverRecordError, match="gates"):
        simulated(msgspec.structs.replace(record, gates=only_memory))


@pytest.mark.parametrize(
    ("candidate", "told"),
    [
        ("", "line 15: give a policy or a [rollout.candidate], one of the two"),
        (AFFINE + "\nmargin = -0.1", "line 23: Expected `float` >= 0.0 - at `$.rollout.margin`"),
        (AFFINE + "\nledger = 1", "line 23: Object contains unknown field `ledger`"),
        ("[rollout.candidate]\nreplicas = 4", "line 23: leaves no replica to compare with"),
    ],
)
def test_wrong_rollout_names_line_and_field(candidate: str, told: str) -> None:
    """As everything else in a scenario."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(TEXT.replace("CANDIDATE", candidate), source="x.toml")
    assert told in str(caught.value)
    with pytest.raises(ScenarioError, match="no policy 'unheard of' is known"):
        rolled('policy = "unheard of"')
