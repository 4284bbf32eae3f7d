"""Laws of the diagnosis that hold for any traffic."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from situations import BANDWIDTH_COST, FLEET, GAINS_UNTIL_3, WINDOW, readings, request

from trimtab.core.record import RequestRecord, Tokens
from trimtab.diagnosis.causes import split_causes
from trimtab.diagnosis.corroboration import confidence_of
from trimtab.diagnosis.diagnose import diagnose
from trimtab.diagnosis.from_records import readings_from_records
from trimtab.diagnosis.names import Name
from trimtab.diagnosis.timeline import Span, levels, overlap_s, union

times_ms = st.floats(0.0, 20_000.0)
spans = st.lists(
    st.builds(
        lambda start, length: Span(start, start + length), st.floats(0, 50), st.floats(0, 20)
    ),
    max_size=12,
)


@st.composite
def served(draw: st.DrawFn) -> RequestRecord:
    prompt = draw(st.integers(1, 2_000))
    delivered = draw(st.none() | st.integers(0, prompt))
    held = draw(st.none() | st.integers(0, prompt))
    tokens = Tokens(
        prompt=prompt, delivered=delivered, held_best=held, output=draw(st.integers(1, 300))
    )
    return request(
        draw(st.floats(0.0, 100.0)),
        queue_ms=draw(times_ms),
        prefill_ms=draw(times_ms),
        decode_ms=draw(times_ms),
        replica=draw(st.sampled_from(["replica-1", "replica-2"])),
        label=draw(st.sampled_from(["edit", "question", None])),
        tokens=tokens,
        batch_at_admission=draw(st.integers(1, 12)),
    )


@given(st.lists(served(), max_size=25))
def test_shares_are_shares_and_phases_add_up(records: list[RequestRecord]) -> None:
    """Every share lies in [0, 1]; the phases of known requests add up to all of their time."""
    found = readings_from_records(records, window=WINDOW, id_prefix="t", fleet=FLEET)
    for name in Name:
        value = found.value(name)
        if name.value.endswith("_share") and value is not None:
            assert -1e-9 <= value <= 1.0 + 1e-9, name
    phases = [
        found.value(name)
        for name in (Name.QUEUE_SHARE, Name.PREFILL_SHARE, Name.TRANSFER_SHARE, Name.DECODE_SHARE)
    ]
    if None not in phases:
        assert abs(sum(share or 0.0 for share in phases) - 1.0) < 1e-9


@given(st.lists(served(), max_size=25))
def test_diagnosis_is_a_function_of_its_inputs(records: list[RequestRecord]) -> None:
    """Equal inputs give equal bytes, and every cited id is among the readings."""
    by_id = [msgspec.structs.replace(r, request_id=str(i)) for i, r in enumerate(records)]

    def made(of: list[RequestRecord]) -> bytes:
        seen = readings_from_records(of, window=WINDOW, id_prefix="t", fleet=FLEET)
        found = diagnose(
            seen, BANDWIDTH_COST, FLEET, now_s=1.0, scope="x", speculation=GAINS_UNTIL_3
        )
        cited = {
            one for finding in (*found.supports, *found.contradicts) for one in finding.evidence
        }
        assert cited <= set(found.evidence)
        return msgspec.json.encode(found)

    assert made(by_id) == made(list(by_id))


@given(
    queue=st.floats(0.01, 1.0),
    prefill=st.floats(0.01, 1.0),
    decode=st.floats(0.01, 1.0),
    behind=st.floats(0.0, 1.0),
    beside=st.floats(0.0, 1.0),
    tpot_ms=st.floats(5.0, 500.0),
)
def test_causes_move_time_but_make_none(
    queue: float, prefill: float, decode: float, behind: float, beside: float, tpot_ms: float
) -> None:
    """However time is moved to its cause, the causes add up to all of it and none is negative."""
    whole = queue + prefill + decode
    seen = readings(
        **{
            Name.QUEUE_SHARE: queue / whole,
            Name.PREFILL_SHARE: prefill / whole,
            Name.DECODE_SHARE: decode / whole,
            Name.QUEUE_BEHIND_PREFILL_SHARE: behind,
            Name.DECODE_BESIDE_PREFILL_SHARE: beside,
            Name.DECODE_MS_PER_TOKEN: tpot_ms,
        }
    )
    causes = split_causes(seen, BANDWIDTH_COST)
    assert causes is not None
    parts = (causes.by_prefill, causes.by_admission, causes.by_decode, causes.transfer)
    assert min(parts) >= 0.0
    assert abs(sum(parts) - 1.0) < 1e-9
    found = diagnose(seen, BANDWIDTH_COST, FLEET, now_s=1.0, scope="x", speculation=GAINS_UNTIL_3)
    for ceiling in found.ceilings:
        assert ceiling.gain_share is not None
        assert -1e-9 <= ceiling.gain_share <= 1.0 + 1e-9, ceiling


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 10_000))
def test_confidence_rises_with_support_and_falls_with_contradiction(
    supports: int, contradictions: int, requests: int
) -> None:
    """One more support never lowers it, one more contradiction or fewer requests never raise it."""
    here = confidence_of(supports, contradictions, requests)
    assert 0.0 <= here < 1.0
    assert confidence_of(supports + 1, contradictions, requests) >= here
    assert confidence_of(supports, contradictions + 1, requests) <= here
    assert confidence_of(supports, contradictions, requests + 1) >= here


@given(spans, spans)
def test_overlap_is_symmetric_and_bounded(left: list[Span], right: list[Span]) -> None:
    """The overlap of two unions is the same from both sides and no longer than either."""
    a, b = union(left), union(right)
    forward = sum(overlap_s(span, b) for span in a)
    backward = sum(overlap_s(span, a) for span in b)
    assert abs(forward - backward) < 1e-6
    assert forward <= min(sum(s.length_s for s in a), sum(s.length_s for s in b)) + 1e-6


@given(spans)
def test_levels_keep_the_time_of_all_spans(found: list[Span]) -> None:
    """Levels weighted by their count have the length of all spans together; without it that of their union."""
    seen = levels(found)
    assert abs(sum(n * span.length_s for span, n in seen) - sum(s.length_s for s in found)) < 1e-6
    assert abs(sum(s.length_s for s, _ in seen) - sum(s.length_s for s in union(found))) < 1e-6
