"""Case H3, control that swings: entered through a lever record, requests and what is read of the fleet."""

import pytest
from adopted_kit import Adopted
from case_kit import Case, routing, speculation
from control_kit import Rig
from router_kit import query, router
from scrape_kit import Load, vllm

from trimtab.core.config import AttachedServer, ConfigError, parse_config
from trimtab.engines.served import read_sample
from trimtab.levers.catalog import routing_policy_of
from trimtab.rollout.short_record import complete, parse_record
from trimtab.runtime.access import Access
from trimtab.runtime.attach_member import Member
from trimtab.runtime.attach_read import Seen

LOW_TRAFFIC = """
[[triggers]]
signal = "load_per_replica"
off_at = {off_at}
on_at = {on_at}
off_when_above = false
lockout_s = 120.0
ticks = 1
because = "a replica of its own is not worth it without traffic"
"""


async def adopted(off_at: float, on_at: float) -> Adopted:
    """A lever that goes off below a load, and returns above another."""
    text = speculation(gates=LOW_TRAFFIC.format(off_at=off_at, on_at=on_at))
    rig = Rig()
    short = parse_record(text, source="lever.toml")
    record = complete(short, baseline=rig.fleet.revision_of("r1"), now_s=rig.clock.wall_s())
    return await Adopted(record).adopt()


@pytest.mark.parametrize(
    ("off_at", "on_at", "turns"), [(0.8, 2.0, 0), (2.4, 2.6, 0), (2.6, 2.8, 1), (9.0, 12.0, 1)]
)
@pytest.mark.parametrize(("per_s", "service_s"), [(5, 1.0), (10, 0.5), (20, 0.25)])
async def test_constant_load_changes_direction_at_most_once(
    off_at: float, on_at: float, turns: int, per_s: int, service_s: float
) -> None:
    """Five requests at work all the time, over twice the lock-out: the lever stays, or goes off and stays off."""
    rig = await adopted(off_at, on_at)
    await rig.serve(260, per_s=per_s, service_s=service_s)
    assert rig.turns == turns


@pytest.mark.parametrize("scale", [1, 2, 7])
async def test_the_last_sample_does_not_decide(scale: int) -> None:
    """10, 10, 15, 10, 10, 5 in flight: what the window holds decides, and a lever for eight or more stays."""
    rig = await adopted(4.0 * scale, 6.0 * scale)
    for streams in (10, 10, 10, 10, 10, 10, 15, 10, 10, 5):
        rig.clock.pass_s(1.0)
        await rig.look(streams * scale)
    assert (rig.is_on, rig.fired()) == (True, [])
    for _ in range(12):
        rig.clock.pass_s(1.0)
        await rig.look(5 * scale)
    assert not rig.is_on


@pytest.mark.parametrize("gap_s", [10, 30, 90])
async def test_what_was_not_read_moves_nothing(gap_s: int) -> None:
    """After a restart of the counters the load is unknown for the whole look-back, and unknown is not none."""
    rig = await adopted(0.8, 2.0)
    await rig.serve(20, per_s=5, service_s=1.0)
    rig.in_flight = []
    for _ in range(gap_s):
        rig.clock.pass_s(1.0)
        await rig.look(None)
    await rig.serve(20, per_s=5, service_s=1.0)
    assert (rig.is_on, rig.fired()) == (True, [])
    rig.in_flight = []
    for _ in range(12):
        rig.clock.pass_s(1.0)
        await rig.look(0)
    assert not rig.is_on


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "prefix_affine"])
@pytest.mark.parametrize("replicas", [2, 4, 5])
def test_a_burst_between_two_probes_is_spread(policy: str, replicas: int) -> None:
    """50 requests in one poll, routed as an adopted record says: those in flight count, whatever the poll said."""
    case = Case(routing(policy))
    wanted = routing_policy_of(case.record)
    case.actuator.adopt(case.record, policy=wanted, cuts=(), cause_id="A")
    assert case.actuator.plan.policy == policy
    names = [f"r{number}" for number in range(replicas)]
    made = router(*names, policy=policy, slots=64)
    for number in range(50):
        prompt = bytes([number % 250]) * 1_000
        made.route(query(f"q{number}", prompt, session=f"s{number}"), case.actuator.plan)
    most = max(one.in_flight for one in made.load.view(0.0).replicas)
    assert most <= -(-50 // replicas) + 1


@pytest.mark.parametrize("every_s", [1.0, 15.0, 60.0])
def test_a_reading_is_not_stale_before_the_next_poll(every_s: float) -> None:
    """How old it may get follows from how often it is read: a poll a minute does not make everything stale."""
    member = Member(AttachedServer(url="http://127.0.0.1:1"), "a", Access())
    page = vllm(Load(running=7, waiting=1, kv=0.4)).encode()
    member.take(Seen(at_mono_s=100.0, sample=read_sample(page, source="a", at_s=1e9)))
    assert member.load(100.0 + 2.0 * every_s, every_s).running == 7
    assert member.load(100.0 + 4.0 * every_s, every_s).running is None


@pytest.mark.parametrize("key", ["stale_s", "stale_after_s", "probe_stale_s"])
def test_a_limit_of_age_below_the_poll_cannot_be_configured(key: str) -> None:
    """Poll 60 s, stale 2 s: refused with the key, since there is none for it."""
    with pytest.raises(ConfigError, match=key):
        parse_config(f"[fleet]\nprobe_every_s = 60.0\n{key} = 2.0\n", source="c.toml")
