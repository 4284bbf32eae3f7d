"""Who is in a slice: the same in every gateway and after a restart; drawn by header, tenant, model and more."""

import msgspec
import pytest
from fake_engine import FakeEngine
from harness import SECRET, Harness

from trimtab.core.cuts import Cut, Dimension, hidden
from trimtab.core.lever import Comparison, StickyBy
from trimtab.core.traffic import CandidatePlan, Preference, TrafficPlan
from trimtab.core.types import Arm
from trimtab.policies.places import HashedPlaces

CANDIDATE = CandidatePlan(
    lever="speculation",
    share=0.25,
    policy=None,
    replicas=("r1",),
    comparison=Comparison.SIDE_BY_SIDE,
    started_at_s=0.0,
    block_s=1e9,
    edge_s=0.0,
)
SESSIONS = [f"session {number}" for number in range(40)]


def fleet(candidate: CandidatePlan | None, *, preferences: tuple[Preference, ...] = ()) -> Harness:
    """A gateway of its own, with hashed places and a plan."""
    made = Harness(FakeEngine(), FakeEngine())
    made.router._places = HashedPlaces()
    made.router.plan = TrafficPlan(
        policy="round_robin", candidate=candidate, preferences=preferences
    )
    return made


async def arms(candidate: CandidatePlan, sessions: list[str]) -> dict[str, Arm]:
    """The arm of each session, asked of a gateway that was just started."""
    found: dict[str, Arm] = {}
    async with fleet(candidate) as gateway:
        for number, session in enumerate(sessions, start=1):
            await gateway.post(X_Trimtab_Session=session)
            found[session] = (await gateway.record(of=number)).arm
    return found


async def test_two_gateways_and_a_restarted_one_agree_on_every_session() -> None:
    """Whatever came before, in whatever order: a session is in the slice everywhere or nowhere."""
    first = await arms(CANDIDATE, SESSIONS)
    second = await arms(CANDIDATE, SESSIONS[::-1])
    restarted = await arms(CANDIDATE, SESSIONS[20:])
    assert first == second
    assert restarted == {session: first[session] for session in SESSIONS[20:]}
    inside = sum(arm is Arm.CANDIDATE for arm in first.values())
    assert 3 <= inside <= 18


async def test_a_session_stays_in_a_slice_that_grows() -> None:
    """Who met the candidate at 25% meets it at 50%."""
    small = await arms(CANDIDATE, SESSIONS)
    large = await arms(msgspec.structs.replace(CANDIDATE, share=0.5), SESSIONS)
    stayed = [large[session] for session, arm in small.items() if arm is Arm.CANDIDATE]
    assert set(stayed) == {Arm.CANDIDATE}
    assert sum(arm is Arm.CANDIDATE for arm in large.values()) > len(stayed)


async def test_slice_by_header_takes_that_value_alone_and_keeps_it_hashed() -> None:
    """The name is in the clear, the value is not: neither in the plan nor in a record."""
    cut = hidden(Cut(Dimension.HEADER, "X-Team:secret-team"), SECRET.digest)
    everyone = msgspec.structs.replace(CANDIDATE, share=0.95, cuts=(cut,))
    async with fleet(everyone) as gateway:
        for number, team in enumerate(("secret-team", "other", "secret-team"), start=1):
            await gateway.post(X_Team=team, X_Trimtab_Session="session 1")
            await gateway.record(of=number)
        await gateway.post(X_Trimtab_Session="session 1")
        await gateway.record(of=4)
        records = list(gateway.records)
    assert [one.arm for one in records] == [
        Arm.CANDIDATE,
        Arm.BASELINE,
        Arm.CANDIDATE,
        Arm.BASELINE,
    ]
    assert records[0].marks == (cut.value,)
    assert [len(one.marks) for one in records] == [1, 1, 1, 0]
    kept = msgspec.json.encode([gateway.served, everyone, records]).decode()
    assert "x-team:" in kept
    assert "secret-team" not in kept


@pytest.mark.parametrize(
    ("cut", "inside", "outside"),
    [
        (Cut(Dimension.MODEL, "a"), {"model": "a"}, {"model": "b"}),
        (Cut(Dimension.TEMPERATURE, "0"), {"temperature": 0}, {"temperature": 1}),
        (
            Cut(Dimension.CONSTRAINT, "json_object"),
            {"response_format": {"type": "json_object"}},
            {},
        ),
    ],
)
async def test_slices_by_what_a_request_says(
    cut: Cut, inside: dict[str, object], outside: dict[str, object]
) -> None:
    """Only requests of the cut can meet the candidate."""
    everyone = msgspec.structs.replace(CANDIDATE, share=0.95, cuts=(cut,))
    async with fleet(everyone) as gateway:
        await gateway.post(dict(inside), X_Trimtab_Session="session 1")
        await gateway.post(dict(outside), X_Trimtab_Session="session 1")
        await gateway.record(of=2)
        found = [one.arm for one in gateway.records]
    assert found == [Arm.CANDIDATE, Arm.BASELINE]


async def test_a_cut_that_left_stays_off_the_candidates_replica() -> None:
    """Harm was shown in it: its requests are served by the baseline, outside the comparison."""
    out = msgspec.structs.replace(CANDIDATE, share=0.95, without=(Cut(Dimension.LABEL, "long"),))
    async with fleet(out) as gateway:
        for number in range(1, 7):
            await gateway.post(X_Trimtab_Label="long", X_Trimtab_Session=f"session {number}")
            await gateway.record(of=number)
        records = list(gateway.records)
    assert {(one.replica, one.lever, one.block) for one in records} == {("r0", None, None)}


async def test_tenants_stay_together_where_a_record_asks_for_it() -> None:
    """Without tenants a session stands for its tenant, so that nothing changes for it."""
    by_tenant = msgspec.structs.replace(CANDIDATE, sticky_by=StickyBy.TENANT)
    assert await arms(by_tenant, SESSIONS[:8]) == await arms(CANDIDATE, SESSIONS[:8])


async def test_holdback_keeps_its_sessions_on_the_baseline_after_adoption() -> None:
    """The same sessions each time, told apart in their records; everybody else meets the lever."""
    kept = Preference(lever="speculation", cuts=(), replicas=("r1",), holdback_share=0.3)
    met: list[dict[str, tuple[str | None, str | None]]] = []
    for _ in range(2):
        found: dict[str, tuple[str | None, str | None]] = {}
        async with fleet(None, preferences=(kept,)) as gateway:
            for number, session in enumerate(SESSIONS[:20], start=1):
                await gateway.post(X_Trimtab_Session=session)
                one = await gateway.record(of=number)
                found[session] = (one.slice, one.replica)
        met.append(found)
    held = {session for session, (name, _) in met[0].items() if name == "holdback"}
    assert 1 <= len(held) <= 14
    assert {met[0][session] for session in held} == {("holdback", "r0")}
    assert {one for session, one in met[0].items() if session not in held} == {(None, "r1")}
    assert met[0] == met[1]


async def test_answers_that_had_to_be_json_are_checked() -> None:
    """Whole answers only: valid, not valid, and unknown where nothing was asked."""
    asked = {"response_format": {"type": "json_object"}}
    async with Harness(FakeEngine(words=('{"a"', ": 1}"))) as gateway:
        await gateway.post(dict(asked))
        good = await gateway.record(of=1)
        await gateway.post()
        free = await gateway.record(of=2)
    async with Harness(FakeEngine(words=("not", " json"))) as gateway:
        await gateway.post(dict(asked))
        bad = await gateway.record(of=1)
    assert (good.output_valid, free.output_valid, bad.output_valid) == (True, None, False)
