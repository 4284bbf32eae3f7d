"""Why requests failed, told from records alone."""

import random
from collections.abc import Iterator

import pytest

from trimtab.core.record import RequestRecord
from trimtab.core.types import ErrorClass
from trimtab.policies.idle_failures import FailureCause, Share, explain_failures

TOOK_S = 2.0


def record(
    session: str | None, at_s: float, *, failed: bool = False, revision: str = "v1"
) -> RequestRecord:
    return RequestRecord(
        request_id="q",
        arrived_at_s=at_s,
        finished_at_s=at_s + TOOK_S,
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
