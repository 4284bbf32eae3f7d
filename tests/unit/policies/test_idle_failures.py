"""Why requests failed, told from records alone."""

import random
from collections.abc import Iterator

import pytest

from trimtab.core.record import RequestRecord
from trimtab.core.types import ErrorClass
from trimtab.policies.idle_failures import FailureCause, Share, explain_failures

TOOK_S = 2.0


def record(
    session: str | None,
    at_s: float,
    *,
    failed: bool = False,
    revision: str = "v1",
    took_s: float = TOOK_S,
) -> RequestRecord:
    return RequestRecord(
        request_id="q",
        arrived_at_s=at_s,
        finished_at_s=at_s + took_s,
        endpoint="/v1/chat/completions",
        stream=True,
        session=session,
        revision=revision,
        status=502 if failed else 200,
        error=ErrorClass.UPSTREAM_CONNECT if failed else ErrorClass.NONE,
    )


def agents(
    rng: random.Random, *, fails: float, least_s: float, most_s: float, sessions: int = 300
) -> Iterator[RequestRecord]:
    """Sessions of 20 requests; nearly a third of the pauses lie between 5 and 90 s; half ask a new revision."""
    for number in range(sessions):
        at_s = rng.uniform(0.0, 1000.0)
        for turn in range(20):
            long = rng.random() < 0.308
            pause_s = rng.uniform(5.0, 90.0) if long else rng.uniform(0.0, 4.9)
            at_s += TOOK_S + (pause_s if turn else 0.0)
            failed = turn > 0 and least_s <= pause_s <= most_s and rng.random() < fails
            revision = "v2" if number % 2 else "v1"
            yield record(f"s{number}", at_s, failed=failed, revision=revision)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_failures_after_pauses_alone_are_of_the_keep_alive_and_not_of_the_new_revision(
    seed: int,
) -> None:
    """One or two of a hundred requests end with 502, all after 5 to 90 s of silence, under both revisions."""
    rng = random.Random(seed)
    records = list(agents(rng, fails=0.05, least_s=5.0, most_s=90.0))
    said = explain_failures(records)
    assert said.cause is FailureCause.KEEP_ALIVE_MISMATCH
    assert said.pause_s_min is not None
    assert said.pause_s_max is not None
    assert 5.0 <= said.pause_s_min < said.pause_s_max <= 90.0
    assert said.others is not None
    assert said.others.failed == 0
    assert "under every revision alike" in said.because
    assert 0.01 < said.all.failed / said.all.n < 0.02


def test_keep_alive_of_a_new_revisions_servers_names_that_revision() -> None:
    """Where the new servers alone close early, that is said, and still it is not the model."""
    rng = random.Random(4)
    records = [
        each
        for each in agents(rng, fails=0.2, least_s=5.0, most_s=90.0)
        if each.revision == "v2" or each.status == 200
    ]
    said = explain_failures(records)
    assert said.cause is FailureCause.KEEP_ALIVE_MISMATCH
    assert "most often at revision v2" in said.because


def test_revision_that_fails_after_no_pause_too_is_to_blame() -> None:
    """Failures of one revision whatever went before them are its own."""
    rng = random.Random(5)
    records = [
        record(
            f"s{number}",
            10.0 * number + turn,
            failed=number % 2 == 1 and rng.random() < 0.05,
            revision="v2" if number % 2 else "v1",
        )
        for number in range(200)
        for turn in range(10)
    ]
    said = explain_failures(records)
    assert said.cause is FailureCause.REVISION
    assert "revision v2" in said.because


def test_failures_everywhere_are_of_no_known_cause() -> None:
    """After pauses and without, under both revisions: nothing here explains that."""
    rng = random.Random(6)
    said = explain_failures(
        record(f"s{number}", 5.0 * turn, failed=rng.random() < 0.1, revision=f"v{1 + number % 2}")
        for number in range(50)
        for turn in range(10)
    )
    assert said.cause is FailureCause.UNKNOWN


@pytest.mark.parametrize("failures", [0, 4])
def test_few_failures_are_not_explained(failures: int) -> None:
    """Four failures say nothing, however neatly they lie."""
    records = [record("s", 10.0 * at, failed=0 < at <= failures) for at in range(100)]
    said = explain_failures(records)
    assert (said.cause, said.all) == (FailureCause.UNKNOWN, Share(failed=failures, n=100))


def test_other_ends_are_no_failures_to_send() -> None:
    """A client that left, a refusal for want of a place, an error of the model: not asked about here."""
    ends = ((499, ErrorClass.CLIENT_ABORT), (503, ErrorClass.OVERLOADED), (500, ErrorClass.NONE))
    records = [
        RequestRecord(
            request_id="q",
            arrived_at_s=float(at),
            finished_at_s=at + 0.5,
            endpoint="/v1/completions",
            stream=False,
            session="s",
            status=ends[at % 3][0],
            error=ends[at % 3][1],
        )
        for at in range(60)
    ]
    assert explain_failures(records).all == Share(failed=0, n=60)


def pairs(
    pause_s: float, *, n: int, failures: int, revision: str = "v1", name: str = "p"
) -> list[RequestRecord]:
    """Sessions of two requests with a pause between; the second fails in the first few of them."""
    return [
        record(
            f"{name}{revision}{number}",
            100.0 * number + at * (TOOK_S + pause_s),
            failed=at == 1 and number < failures,
            revision=revision,
        )
        for number in range(n)
        for at in range(2)
    ]


@pytest.mark.parametrize("stray", [record("a", 0.0, failed=True), record(None, 0.0, failed=True)])
def test_one_unrelated_failure_leaves_the_keep_alive_to_blame(stray: RequestRecord) -> None:
    """Fifty failures after 30 s, all of the revision that is asked after pauses, and one after none."""
    records = pairs(30.0, n=500, failures=50, revision="v2") + pairs(0.5, n=500, failures=0)
    said = explain_failures([*records, stray])
    assert said.cause is FailureCause.KEEP_ALIVE_MISMATCH
    assert (said.after_pause, said.others) == (
        Share(failed=50, n=500),
        Share(failed=1, n=1501),
    )
    assert "50 of 51 failures came 30.0 to 30.0 s after" in said.because
    assert "; 1 of the other 1501" in said.because


def test_failing_revision_that_is_asked_after_pauses_is_still_to_blame() -> None:
    """It fails after no pause as often: that its requests mostly come after pauses is no reason."""
    rng = random.Random(7)
    records = [
        record(
            f"{revision}{number}",
            1000.0 * number + at * (TOOK_S + (30.0 if rng.random() < pauses else 0.5)),
            failed=revision == "v2" and rng.random() < 0.1,
            revision=revision,
        )
        for revision, pauses in (("v1", 0.2), ("v2", 0.6))
        for number in range(1000)
        for at in range(2)
    ]
    said = explain_failures(records)
    assert said.cause is FailureCause.REVISION
    assert "revision v2 fails more often than the others" in said.because


def test_revision_asked_after_more_pauses_is_not_blamed_for_what_pauses_do() -> None:
    """Too few failures for certainty about pauses: revisions are compared after pauses, where they are alike."""
    records = [
        *pairs(30.0, n=80, failures=6, revision="v2"),
        *pairs(30.0, n=10, failures=0),
        *pairs(0.5, n=300, failures=0, name="s"),
    ]
    said = explain_failures(records)
    assert said.cause is FailureCause.UNKNOWN


def test_too_few_failures_after_pauses_are_said_to_be_that() -> None:
    """All came after pauses: what is missing is certainty, not the pauses."""
    said = explain_failures(pairs(30.0, n=20, failures=5))
    assert said.cause is FailureCause.UNKNOWN
    assert (
        "all of them 30.0 to 30.0 s after the request before in their session, too few to be "
        "certain that the pause is why"
    ) in said.because


def test_when_servers_close_is_said_as_a_bound_with_the_longest_harmless_pause() -> None:
    """Failures show by when connections are closed at the latest, not when."""
    records = [
        *pairs(30.0, n=200, failures=50),
        *pairs(7.5, n=200, failures=0, name="s"),
    ]
    because = explain_failures(records).because
    assert "close idle connections after at most 30.0 s (one of 7.5 s did no harm)" in because


def test_session_is_not_silent_while_a_request_of_it_runs() -> None:
    """Beside a long request short ones begin and end: what comes during it comes after no pause."""
    records: list[RequestRecord] = []
    for number in range(200):
        session, at_s = f"s{number}", 1000.0 * number
        records += [
            record(session, at_s, took_s=100.0),
            record(session, at_s + 1.0),
            record(session, at_s + 50.0, failed=number < 50),
        ]
    said = explain_failures(records)
    assert said.pause_s_min in (None, 0.0)
