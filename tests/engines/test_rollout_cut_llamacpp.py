"""A lever that is good on average and bad for long inputs, on a real fleet: long inputs alone leave it."""

import asyncio
import random
from pathlib import Path
from statistics import geometric_mean

import pytest
from cli_kit import chat
from serving_kit import CHAT, RECORD, Serving, until_true

from trimtab.core.config import EngineConfig
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.events import CutsKept, GatesEvaluated
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm, RolloutState

pytestmark = [
    pytest.mark.engine_llamacpp,
    pytest.mark.alone,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("own_state"),
]


LONG = Cut(Dimension.INPUT_TOKENS, "256-1024")
LONG_TOKENS_MIN = 256
DRAFTS_IN_TWO_SLOTS = RECORD.format(
    name="drafts-in-two-slots",
    technique="speculation",
    head="[revision]\nslots = 2\nspeculation = {method = 'ngram_simple', match_tokens = 3, draft_tokens_max = 16}",
    shares="[0.5, 0.95]",
    peak="20min",
    block="15s",
    rest="""
[absent]
ttft_ms = "these clients do not stream"
tpot_ms = "these clients do not stream"
chunk_gap_ms = "these clients do not stream"
[expected.e2e_ms]
ratio = 0.8
low = 0.6
high = 0.95
because = "texts are repeated"
[[gates]]
name = "answers to long inputs"
metric = "e2e_ms"
question = "veto"
margin = 0.25
alpha = 0.4
cut = "input_tokens=256-1024"
min_requests = 4
min_units = 3
required = false
""",
).replace('warm_up = "0s"', 'warm_up = "30s"')  # each document is read once by both arms
"""It drafts, which helps short requests; but of its two slots one holds those, and the other one document of two."""

REPEATED = "Go on with this list:\n" + "- red apple\n- green pear\n- blue plum\n" * 8
"""Nearly every token of its answer is drafted: it takes three quarters of the time or less, on slow machines too."""

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")
DOCUMENTS = tuple(" ".join(random.Random(n).choices(WORDS, k=180)) for n in (5, 6))
SHORT_PER_LONG = 10
"""Both arms take their turns together, and a block is about a turn long: it tells of both kinds in both arms.

A comparison of outputs takes a slot too, so that the first short request after a document is often read again.
"""

TOKENS = 80
"""Of every answer: what tells long inputs apart is their length alone.

Long enough that drafts save ten short requests more than the reading of a document costs the long one.
"""


async def test_lever_that_harms_long_inputs_is_stopped_for_long_inputs_only(
    tmp_path: Path,
) -> None:
    """Answers come sooner on average, those to long inputs do not: they leave the slice, the rest of it stays."""
    engine = EngineConfig(slots=4, context_tokens=1024, threads=1)
    async with Serving(tmp_path, engine) as serving:
        record = serving.record(DRAFTS_IN_TWO_SLOTS)
        await serving.start(record)
        sessions = [
            *await serving.sessions(Arm.BASELINE, 1),
            *await serving.sessions(Arm.CANDIDATE, 1),
        ]
        stop = asyncio.Event()
        clients = asyncio.create_task(mixed(serving, sessions, stop))
        try:
            await leave(serving)
            seen = len(serving.system.records)
            await until_true(
                lambda: enough_since(serving, seen), 60, "both kinds are served afterwards"
            )
        finally:
            stop.set()
            await clients
        before, after = serving.system.records[:seen], serving.system.records[seen:]
        why = refused(serving)[str(LONG)]
        assert why.startswith("answers to long inputs: worse by more than 25% is shown")
        # What the two clients had in flight as the cut left was sent before.
        assert {one.arm for one in after[2:] if is_long(one)} == {Arm.BASELINE}
        assert Arm.CANDIDATE in {one.arm for one in after if not is_long(one)}
        assert serving.state(record.name) is RolloutState.CANARY
        assert all(one.ok for one in serving.system.records)
        assert e2e_ms(before, Arm.CANDIDATE) < e2e_ms(before, Arm.BASELINE)


async def mixed(serving: Serving, sessions: list[str], stop: asyncio.Event) -> None:
    """Short requests that draft well, now and then another question about a document, until told to stop."""
    turn = 0
    while not stop.is_set():
        turn += 1
        question = f"{DOCUMENTS[turn % 2]}. Question {turn}: which word comes first?"
        for text in (*[REPEATED] * SHORT_PER_LONG, question):
            await asyncio.gather(*[whole_answer(serving, session, text) for session in sessions])


async def whole_answer(serving: Serving, session: str, text: str) -> None:
    """Ask without a stream, so that a whole answer is what is waited for and judged."""
    body = chat(text, max_tokens=TOKENS, ignore_eos=True)
    headers = {"X-Trimtab-Session": session}
    async with serving.http.post(serving.system.url + CHAT, json=body, headers=headers) as got:
        assert got.status == 200, await got.text()


async def leave(serving: Serving) -> None:
    """Wait until a cut leaves; if none does, say what the last look said."""
    try:
        await until_true(lambda: str(LONG) in refused(serving), 420, "long inputs leave the slice")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{told(serving)}") from None


def is_long(record: RequestRecord) -> bool:
    return (record.tokens.prompt or 0) >= LONG_TOKENS_MIN


def enough_since(serving: Serving, seen: int) -> bool:
    """Whether long and short requests of the candidate's session were served since."""
    after = serving.system.records[seen + 2 :]
    short = sum(one.arm is Arm.CANDIDATE and not is_long(one) for one in after)
    return short >= SHORT_PER_LONG and sum(map(is_long, after)) >= 2


def refused(serving: Serving) -> dict[str, str]:
    """Cuts that left, with the reason."""
    found = [event.refused for event in serving.events() if isinstance(event, CutsKept)]
    return {cut: why for one in found for cut, why in one.items()}


def e2e_ms(records: list[RequestRecord], arm: Arm) -> float:
    """Mean time to the end of an answer over all requests of an arm that were compared, long ones too: geometric."""
    return geometric_mean(one.e2e_ms for one in records if one.arm is arm and one.lever)


def told(serving: Serving) -> str:
    """What the last look said, and how far the arms are apart."""
    looks = [event for event in serving.events() if isinstance(event, GatesEvaluated)]
    results = looks[-1].results if looks else ()
    said = [f"{one.gate} ({one.cut}) {one.value}: {one.reason}" for one in results]
    counts = {arm: sum(one.arm is arm for one in serving.system.records) for arm in Arm}
    return "\n".join([str(serving.control.controller.proof), str(counts), *said])
