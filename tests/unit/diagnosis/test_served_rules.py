"""What binds a server of others, and what must be said beside it, on readings alone."""

import msgspec
import pytest
from served_kit import (
    DEVICE,
    KNOWN,
    MEASURED,
    SERVED_8B,
    Values,
    advised,
    served,
    served_evidence,
)

from trimtab.core.budgets import Budget
from trimtab.core.evidence import Readings, Window
from trimtab.core.findings import Finding
from trimtab.core.types import Phase, Resource, Technique
from trimtab.diagnosis.served_advice import Activity, Outcome, ServedAdvice, WarningKind
from trimtab.diagnosis.served_facts import CacheFacts, PromptTag, ServedFacts
from trimtab.diagnosis.served_names import ServedName as N
from trimtab.diagnosis.served_names import high_of, low_of
from trimtab.diagnosis.served_rules import advise_served, diagnose_served

NOTHING_SHARED = ServedFacts(prompts=(PromptTag.NO_SHARED_PREFIX,))
PREEMPTED: Values = {
    N.PREFIX_HIT_SHARE: 0.32,
    N.PREEMPTIONS_PER_S: 2.0,
    N.KV_USED_SHARE_MEAN: 0.823,
    N.KV_USED_SHARE_MAX: 0.823,
    N.RUNNING_MEAN: 259,
    N.WAITING_MEAN: 535,
}
OVERLOADED: Values = {
    N.RUNNING_MEAN: 162,
    N.WAITING_MEAN: 2826,
    N.KV_USED_SHARE_MEAN: 0.28,
    N.KV_USED_SHARE_MAX: 0.28,
    N.TTFT_MS_MEAN: 213_700,
    N.TTFT_MS_P50: 30_000,
    low_of(N.TTFT_MS_P50): 30_000,
    high_of(N.TTFT_MS_P50): "above the last bucket edge of 30000 ms",
    N.TTFT_MS_P99: 30_000,
    low_of(N.TTFT_MS_P99): 30_000,
    high_of(N.TTFT_MS_P99): "above the last bucket edge of 30000 ms",
    N.TPOT_MS_MEAN: 117,
    N.OUTPUT_LENGTH_MEAN: 700,
    N.OUTPUT_GAUGE_TOKENS_PER_S: 86.5,
}
DECODING: Values = {
    N.RUNNING_MEAN: 8,
    N.WAITING_MEAN: 0,
    N.KV_USED_SHARE_MEAN: 0.2,
    N.KV_USED_SHARE_MAX: 0.3,
    N.QUEUE_SHARE: 0.01,
    N.PREFILL_SHARE: 0.09,
    N.DECODE_SHARE: 0.9,
    N.TTFT_MS_MEAN: 200,
    N.TPOT_MS_MEAN: 7.0,
    N.PROMPT_LENGTH_MEAN: 500,
    N.OUTPUT_LENGTH_MEAN: 300,
    N.OUTPUT_TOKENS_PER_S: 1140,
    N.COMPUTED_PROMPT_TOKENS_PER_S: 1900,
}
PREFILLING: Values = {
    **DECODING,
    N.PREFILL_SHARE: 0.75,
    N.DECODE_SHARE: 0.24,
    N.PROMPT_LENGTH_MEAN: 12_000,
    N.OUTPUT_LENGTH_MEAN: 50,
    N.COMPUTED_PROMPT_TOKENS_PER_S: 40_000,
    N.OUTPUT_TOKENS_PER_S: 160,
    N.PREFIX_HIT_SHARE: 0.05,
}


def binding_of(advice: ServedAdvice) -> tuple[Phase, Resource] | None:
    return None if advice.binding is None else (advice.binding.phase, advice.binding.resource)


def kinds(advice: ServedAdvice) -> set[WarningKind]:
    return {warning.kind for warning in advice.warnings}


def gain(advice: ServedAdvice, technique: Technique) -> float | None:
    found = advice.diagnosis.ceiling(technique)
    assert found is not None
    return found.gain_share


@pytest.mark.parametrize(
    ("values", "facts", "expected"),
    [
        (PREEMPTED, NOTHING_SHARED, (Phase.QUEUE, Resource.MEMORY_CAPACITY)),
        ({**PREEMPTED, N.KV_USED_SHARE_MAX: 0.96, N.RUNNING_MEAN: 40, N.WAITING_MEAN: 12},
         NOTHING_SHARED, (Phase.QUEUE, Resource.MEMORY_CAPACITY)),
        (OVERLOADED, ServedFacts(), (Phase.QUEUE, Resource.ADMISSION)),
        ({**OVERLOADED, N.RUNNING_MEAN: 16, N.WAITING_MEAN: 90, N.KV_USED_SHARE_MAX: 0.5},
         ServedFacts(), (Phase.QUEUE, Resource.ADMISSION)),
        ({**OVERLOADED, N.KV_USED_SHARE_MEAN: None, N.KV_USED_SHARE_MAX: None},
         ServedFacts(slots=162), (Phase.QUEUE, Resource.ADMISSION)),
        (DECODING, KNOWN, (Phase.DECODE, Resource.MEMORY_BANDWIDTH)),
        ({**DECODING, N.RUNNING_MEAN: 2000, N.PROMPT_LENGTH_MEAN: 10, N.OUTPUT_LENGTH_MEAN: 20,
          N.OUTPUT_TOKENS_PER_S: 50_000, N.TPOT_MS_MEAN: 40.0},
         KNOWN, (Phase.DECODE, Resource.COMPUTE)),
        (PREFILLING, KNOWN, (Phase.PREFILL, Resource.COMPUTE)),
        (PREFILLING, ServedFacts(), (Phase.PREFILL, Resource.COMPUTE)),
        ({**PREFILLING, N.KV_USED_SHARE_MAX: None, N.KV_USED_SHARE_MEAN: None, N.RANKS: 1},
         ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.9)),
         (Phase.PREFILL, Resource.MEMORY_CAPACITY)),
        ({**PREFILLING, N.KV_USED_SHARE_MAX: None, N.KV_USED_SHARE_MEAN: None, N.RANKS: 2},
         ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.9, sessions_stay=True)),
         (Phase.PREFILL, Resource.MEMORY_CAPACITY)),
        ({**PREFILLING, N.KV_USED_SHARE_MAX: None, N.KV_USED_SHARE_MEAN: None, N.RANKS: 2},
         ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.9, sessions_stay=False)),
         (Phase.PREFILL, Resource.COMPUTE)),
        ({**PREFILLING, N.KV_USED_SHARE_MAX: None, N.KV_USED_SHARE_MEAN: None, N.RANKS: 2},
         ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.05, sessions_stay=True)),
         (Phase.PREFILL, Resource.COMPUTE)),
        ({**PREFILLING, N.RANKS: 1}, ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.9)),
         (Phase.PREFILL, Resource.MEMORY_CAPACITY)),
        ({**PREFILLING, N.RANKS: 1},
         ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.9, enabled=False)),
         (Phase.PREFILL, Resource.COMPUTE)),
        ({**PREFILLING, N.RANKS: 1, N.PROMPT_LENGTH_MEAN: 120},
         ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.9), effective={"block_size": "128"}),
         (Phase.PREFILL, Resource.COMPUTE)),
        ({**PREFILLING, N.RANKS: 1, N.PROMPT_LENGTH_MEAN: 1200},
         ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.9), effective={"block_size": "128"}),
         (Phase.PREFILL, Resource.MEMORY_CAPACITY)),
    ],
    ids=["preempted", "preempted, other numbers", "overloaded", "overloaded, other numbers",
         "overloaded, slots known", "decode", "large batch", "prefill", "prefill, no facts",
         "evicted", "evicted on each of two", "lost on another of two", "two without reuse",
         "evicted though little runs", "caching is off", "less than a block", "many blocks"],
)  # fmt: skip
def test_each_server_gets_its_bottleneck(
    values: Values, facts: ServedFacts, expected: tuple[Phase, Resource]
) -> None:
    """The dominant phase and resource are those that the readings were built with, on cited evidence."""
    advice = advised(values, facts)
    assert binding_of(advice) == expected
    assert advice.diagnosis.confidence > 0.5
    assert all(found.evidence for found in advice.diagnosis.supports)


@pytest.mark.parametrize(
    ("values", "facts", "flag"),
    [
        ({**PREEMPTED, N.KV_USED_SHARE_MEAN: None, N.KV_USED_SHARE_MAX: None}, NOTHING_SHARED,
         "KV usage"),
        ({**OVERLOADED, N.KV_USED_SHARE_MEAN: None, N.KV_USED_SHARE_MAX: None}, ServedFacts(),
         "KV usage"),
        ({**DECODING}, ServedFacts(), "--model and --hardware"),
        ({**DECODING, N.RUNNING_MEAN: None, N.WAITING_MEAN: None}, KNOWN, "running requests"),
        ({**PREFILLING, N.QUEUE_SHARE: None, N.WAITING_MEAN: None}, KNOWN, "waiting requests"),
        ({N.PREFIX_HIT_SHARE: 0.946, N.PREFILL_SHARE: 0.08}, ServedFacts(), "waiting requests"),
        ({}, ServedFacts(), "waiting requests"),
        ({**PREFILLING, N.KV_USED_SHARE_MAX: None, N.KV_USED_SHARE_MEAN: None, N.RANKS: 2},
         ServedFacts(cache=CacheFacts(reuse_ceiling_share=0.9)), "cache.sessions_stay"),
    ],
)  # fmt: skip
def test_missing_fact_is_cannot_tell_and_names_what_would(
    values: Values, facts: ServedFacts, flag: str
) -> None:
    """Without a needed reading nothing binds, all is not well either, and the way to know is named."""
    advice = advised(values, facts)
    assert (advice.binding, advice.diagnosis.confidence) == (None, 0.0)
    assert flag in " ".join(advice.would_tell)
    assert advice.diagnosis.unknown != ()


def test_missing_kv_usage_is_unknown_and_never_zero() -> None:
    """With neither name of the KV gauge on the page, nothing that needs it is decided."""
    values: Values = {
        N.RUNNING_MEAN: 10,
        N.WAITING_MEAN: 40,
        N.KV_USED_SHARE_MAX: "no source tells it",
    }
    advice = advised(values)
    assert advice.binding is None
    assert advice.outcome is Outcome.CANNOT_TELL or advice.healthy is False
    assert advice.diagnosis.budgets.use(Budget.MEMORY).used_share is None
    for lever in ("eight_bit_kv", "fewer_slots", "more_kv_memory"):
        proposal = advice.proposal(lever)
        assert proposal is not None
        assert proposal.premise_holds is None
    assert any("kv_used_share_max: no source" in found.text for found in advice.diagnosis.unknown)


@pytest.mark.parametrize("used", [0.7, 0.1, 0.4])
def test_known_kv_usage_rules_capacity_out(used: float) -> None:
    """A KV share below the limit is named among what was ruled out, with its value."""
    advice = advised({N.RUNNING_MEAN: 10, N.WAITING_MEAN: 40, N.KV_USED_SHARE_MAX: used})
    assert f"KV capacity: {used:.0%} is in use" in [f.text for f in advice.diagnosis.ruled_out]


@pytest.mark.parametrize("hits", [0.32, 0.6])
def test_hits_of_prompts_that_share_nothing_are_not_trusted(hits: float) -> None:
    """Recomputation after preemption is no reuse: the share is marked, and no caching is proposed."""
    advice = advised({**PREEMPTED, N.PREFIX_HIT_SHARE: hits}, NOTHING_SHARED)
    assert WarningKind.HIT_SHARE_UNTRUSTED in kinds(advice)
    assert gain(advice, Technique.PREFIX_CACHING) == 0.0
    held = [p.lever for p in advice.proposals if p.premise_holds]
    assert not {"prompt_layout", "prefix_affine_routing", "enable_prefix_caching"} & set(held)
    assert "fewer_slots" in held
    assert any(found.text.startswith("do not build on the hit share") for found in advice.not_to_do)


def test_hits_without_preemption_or_tag_are_believed() -> None:
    """A hit share that nothing speaks against raises no warning, and neither does an unknown one."""
    calm: Values = {**DECODING, N.PREFIX_HIT_SHARE: 0.6}
    for values in (calm, {**calm, N.PREFIX_HIT_SHARE: None}):
        assert WarningKind.HIT_SHARE_UNTRUSTED not in kinds(advised(values, KNOWN))


@pytest.mark.parametrize(("hits", "prefill"), [(0.946, 0.08), (0.99, 0.02), (0.5, 0.06)])
def test_ceiling_of_caching_is_what_prefill_still_takes(hits: float, prefill: float) -> None:
    """A high hit share is no gain: at most prefill's part of request time is left."""
    values: Values = {**DECODING, N.PREFIX_HIT_SHARE: hits, N.PREFILL_SHARE: prefill}
    advice = advised({**values, N.DECODE_SHARE: 0.99 - prefill})
    found = advice.diagnosis.ceiling(Technique.PREFIX_CACHING)
    assert found is not None
    assert found.gain_share == pytest.approx(prefill)
    assert "little left to gain from caching" in found.because
    assert any("do not tune prefix caching" in found.text for found in advice.not_to_do)


def test_ceiling_of_caching_is_unknown_without_prefill_time_and_silent_where_it_is_large() -> None:
    """Nothing is promised of an unknown prefill, and a large one is not called little."""
    unknown = advised({N.PREFIX_HIT_SHARE: 0.946})
    assert gain(unknown, Technique.PREFIX_CACHING) is None
    large = advised(PREFILLING, KNOWN)
    assert not any("do not tune prefix caching" in found.text for found in large.not_to_do)


@pytest.mark.parametrize(("window", "life"), [(0.05, 0.823), (0.9, 0.2)])
def test_hits_of_the_window_count_and_not_those_of_the_lifetime(window: float, life: float) -> None:
    """The lifetime's share is shown beside the window's and decides nothing."""
    values: Values = {**DECODING, N.PREFIX_HIT_SHARE: window, N.PREFIX_HIT_SHARE_LIFETIME: life}
    [warning] = [w for w in advised(values).warnings if w.kind is WarningKind.HIT_SHARE_LIFETIME]
    assert f"{life:.1%}" in warning.text
    assert f"{window:.1%}" in warning.text


def test_lifetime_hits_alone_leave_the_window_unknown_and_equal_ones_are_no_news() -> None:
    """With one scrape the window's share is unknown; where both agree nothing is said."""
    alone = advised({N.PREFIX_HIT_SHARE_LIFETIME: 0.8})
    assert "in the window unknown" in next(w.text for w in alone.warnings)
    same = advised({N.PREFIX_HIT_SHARE: 0.8, N.PREFIX_HIT_SHARE_LIFETIME: 0.82})
    assert same.warnings == ()


@pytest.mark.parametrize(
    "value", [20.0, 1.11, "20 is above 1: the two series do not count the same thing"]
)
def test_hit_share_above_one_is_rejected(value: float | str) -> None:
    """Queries over hits, the ratio upside down, is refused whoever computed it."""
    advice = advised({**DECODING, N.PREFIX_HIT_SHARE: value})
    assert WarningKind.HIT_SHARE_IMPOSSIBLE in kinds(advice)
    assert WarningKind.HIT_SHARE_IMPOSSIBLE not in kinds(advised({N.PREFIX_HIT_SHARE: 1.0}))
    assert WarningKind.HIT_SHARE_IMPOSSIBLE not in kinds(advised({N.PREFIX_HIT_SHARE: "no source"}))


ONE_FULL: Values = {
    N.RUNNING_MEAN: 40,
    N.WAITING_MEAN: 12,
    N.KV_USED_SHARE_MEAN: 0.535,
    N.KV_USED_SHARE_MAX: 0.97,
    N.RANKS: 2,
    N.RANKS_SATURATED: 1,
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "one rank is saturated of 2: KV usage mean 53.5%, max 97%"),
        ({N.RANKS: 4, N.RANKS_SATURATED: 3}, "3 ranks are saturated of 4: KV usage mean 53.5%, max 97%"),
    ],
)  # fmt: skip
def test_saturated_rank_is_named_and_the_mean_hides_nothing(change: Values, text: str) -> None:
    """One full rank binds however empty the others are, and balancing comes before anything bought."""
    advice = advised({**ONE_FULL, **change})
    assert [w.text for w in advice.warnings if w.kind is WarningKind.RANK_SATURATED] == [text]
    assert binding_of(advice) == (Phase.QUEUE, Resource.MEMORY_CAPACITY)
    held = [p.lever for p in advice.proposals if p.premise_holds]
    assert held.index("balance_ranks") < held.index("add_replica")


def test_all_ranks_alike_or_unknown_raise_no_flag_of_one() -> None:
    """Two full ranks are not one, and an unknown count is no count."""
    assert WarningKind.RANK_SATURATED not in kinds(advised({**ONE_FULL, N.RANKS_SATURATED: 2}))
    unknown = advised({**ONE_FULL, N.RANKS_SATURATED: None})
    assert WarningKind.RANK_SATURATED not in kinds(unknown)
    proposal = unknown.proposal("balance_ranks")
    assert proposal is not None
    assert proposal.premise_holds is None


def test_vanished_rank_is_unknown_and_not_idle() -> None:
    """What is left being quiet says nothing of the rank that is gone."""
    quiet: Values = {N.RUNNING_MEAN: 0, N.WAITING_MEAN: 0, N.RUNNING_MAX: 0, N.WAITING_MAX: 0}
    assert advised(quiet).activity is Activity.IDLE
    lost = advised({**quiet, N.RANKS_LOST: 1})
    assert (lost.activity, lost.binding) == (Activity.UNKNOWN, None)
    assert WarningKind.RANK_LOST in kinds(lost)
    assert lost.healthy is None


def test_overloaded_server_reads_queue_bound_with_kv_ruled_out() -> None:
    """Edges are no values, a gauge that contradicts the streams is not trusted, and KV is not the limit."""
    advice = advised(OVERLOADED)
    texts = {w.kind: w.text for w in advice.warnings}
    above = [w.text for w in advice.warnings if w.kind is WarningKind.ABOVE_LAST_EDGE]
    assert [text.split(",")[0] for text in above] == ["TTFT p50 > 30 s", "TTFT p99 > 30 s"]
    assert all("mean 213,700.0" in text for text in above)
    assert "86.5 tokens/s" in texts[WarningKind.GAUGE_CONTRADICTS]
    assert "1,385" in texts[WarningKind.GAUGE_CONTRADICTS]
    assert "KV capacity: 28% is in use" in [f.text for f in advice.diagnosis.ruled_out]
    assert (advice.outcome, advice.healthy) == (Outcome.BOTTLENECK, False)
    assert any("do not buy memory" in f.text for f in advice.not_to_do)
    assert any("do not turn speculation on" in f.text for f in advice.not_to_do)


def test_gauge_that_agrees_or_cannot_be_compared_is_left_alone() -> None:
    """A throughput near the streams' own, or one that nothing stands beside, raises nothing."""
    agrees = advised({**OVERLOADED, N.OUTPUT_GAUGE_TOKENS_PER_S: 1300})
    alone = advised({N.OUTPUT_GAUGE_TOKENS_PER_S: 86.5})
    assert WarningKind.GAUGE_CONTRADICTS not in kinds(agrees)
    assert WarningKind.GAUGE_CONTRADICTS not in kinds(alone)


@pytest.mark.parametrize(("low", "high", "mean"), [(100, 210, 108.0), (1000, 5000, 1700.0)])
def test_wide_bucket_is_reported_by_its_edges(low: float, high: float, mean: float) -> None:
    """A quantile is never told finer than its bucket: both edges and the mean are shown."""
    name = N.PROMPT_LENGTH_P99
    values: Values = {name: high - 1.1, low_of(name): low, high_of(name): high}
    advice = advised({**values, N.PROMPT_LENGTH_MEAN: mean})
    [warning] = [w for w in advice.warnings if w.kind is WarningKind.WIDE_BUCKET]
    assert f"between {low:,.4g} and {high:,.4g} tokens" in warning.text
    assert f"mean {mean:,.1f}" in warning.text


def test_narrow_bucket_and_unknown_mean_say_nothing_of_width() -> None:
    """A bucket that is narrow beside the mean, or has no mean to be held against, is not named."""
    name = N.PROMPT_LENGTH_P99
    narrow: Values = {name: 205, low_of(name): 200, high_of(name): 210}
    for values in ({**narrow, N.PROMPT_LENGTH_MEAN: 190}, narrow):
        assert WarningKind.WIDE_BUCKET not in kinds(advised(values))


def test_ttft_that_leaves_out_the_wait_is_said() -> None:
    """A mean wait above the mean TTFT cannot be inside it."""
    values: Values = {N.TTFT_MS_MEAN: 310, N.QUEUE_MS_MEAN: 11_800, N.E2E_MS_MEAN: 33_500}
    assert WarningKind.TTFT_WITHOUT_QUEUE in kinds(advised(values))
    assert WarningKind.TTFT_WITHOUT_QUEUE not in kinds(advised({**values, N.QUEUE_MS_MEAN: 100}))
    assert WarningKind.TTFT_WITHOUT_QUEUE not in kinds(advised({N.TTFT_MS_MEAN: 310}))


def test_chunk_gap_beside_drafts_is_named_as_no_token_time() -> None:
    """With several tokens per step the gap of chunks is shown apart from the time per token."""
    values: Values = {N.CHUNK_GAP_MS_MEAN: 8.7, N.TPOT_MS_MEAN: 3.27}
    drafts: Values = {N.ACCEPTED_LENGTH_WITH_BONUS: 2.66, N.DRAFTED_SHARE_OF_STEPS: 1.0}
    [warning] = advised({**values, **drafts}).warnings
    assert warning.kind is WarningKind.CHUNKS_ARE_NOT_TOKENS
    assert "3.27 ms per token" in warning.text
    assert advised(values).warnings == ()


def test_proxy_hits_that_the_engine_denies_are_a_conflict() -> None:
    """95% at a proxy against 0% in the engine is shown, and the engine is trusted."""
    facts = ServedFacts(cache=CacheFacts(proxy_hit_share=0.95))
    assert WarningKind.HIT_SHARE_CONFLICT in kinds(advised({N.PREFIX_HIT_SHARE: 0.0}, facts))
    assert WarningKind.HIT_SHARE_CONFLICT not in kinds(advised({N.PREFIX_HIT_SHARE: 0.9}, facts))
    assert WarningKind.HIT_SHARE_CONFLICT not in kinds(advised({}, facts))


def test_requested_and_effective_configuration_are_compared() -> None:
    """What was asked for and is not in effect is said; what is unknown is not called different."""
    facts = ServedFacts(
        requested={"kv_cache_dtype": "fp8", "block_size": "16", "seed": "0"},
        effective={"kv_cache_dtype": "auto", "block_size": "16"},
    )
    [warning] = advised({}, facts).warnings
    assert warning.text == "kv_cache_dtype: fp8 was requested, auto is in effect"


def test_stale_idle_and_saturated_are_three_things() -> None:
    """Old readings, and running requests without a moving counter, are stale; nothing in flight is idle."""
    running: Values = {N.RUNNING_MEAN: 12, N.WAITING_MEAN: 0, N.KV_USED_SHARE_MAX: 0.2}
    still = advised({**running, N.COUNTERS_GROWN: 0})
    assert (still.activity, still.healthy, still.outcome) == (
        Activity.STALE, None, Outcome.CANNOT_TELL,
    )  # fmt: skip
    assert advised(OVERLOADED, at_s=60.0).activity is Activity.SATURATED
    old = advised(OVERLOADED, at_s=600.0)
    assert (old.activity, old.binding) == (Activity.STALE, None)
    assert WarningKind.STALE in kinds(old)
    assert advised({**running, N.COUNTERS_GROWN: 5}).activity is Activity.WORKING
    idle = advised({N.RUNNING_MEAN: 0, N.WAITING_MEAN: 0})
    assert (idle.activity, idle.outcome) == (Activity.IDLE, Outcome.HEALTHY)


def test_targets_decide_health_where_they_are_given() -> None:
    """Met by the p99, missed above the last edge, and not judged where the bucket straddles the target."""
    straddled: Values = {
        N.TTFT_MS_P99: 400,
        low_of(N.TTFT_MS_P99): 250,
        high_of(N.TTFT_MS_P99): 500,
    }
    assert advised(straddled, ServedFacts(ttft_ms_target=500)).outcome is Outcome.HEALTHY
    assert advised(straddled, ServedFacts(ttft_ms_target=200)).healthy is False
    assert advised(straddled, ServedFacts(ttft_ms_target=300)).healthy is None
    assert advised(OVERLOADED, ServedFacts(ttft_ms_target=2000)).healthy is False
    assert advised(OVERLOADED, ServedFacts(ttft_ms_target=60_000)).healthy is None
    # A mean under the target says nothing of the p99; one above it does.
    assert advised({N.TPOT_MS_MEAN: 30}, ServedFacts(tpot_ms_target=40)).healthy is None
    assert advised({N.TPOT_MS_MEAN: 50}, ServedFacts(tpot_ms_target=40)).healthy is False
    assert advised({}, ServedFacts(tpot_ms_target=40)).outcome is Outcome.CANNOT_TELL


def test_without_targets_health_needs_every_ceiling() -> None:
    """Nothing queues and all ceilings are far: healthy. One that is unknown: cannot tell. Near: not healthy."""
    calm: Values = {**DECODING, N.OUTPUT_TOKENS_PER_S: 700}
    assert advised(calm, KNOWN).outcome is Outcome.HEALTHY
    assert advised(calm).healthy is None
    near = advised({**DECODING, N.OUTPUT_TOKENS_PER_S: 1500}, KNOWN)
    assert (near.healthy, near.outcome) == (False, Outcome.BOTTLENECK)


@pytest.mark.parametrize(
    "against",
    [{N.RESTARTS: 1}, {N.UNACCOUNTED_SHARE: 0.4}, {N.TPOT_MS_MEAN: 70.0}],
    ids=["restart", "time in no phase", "far slower than memory allows"],
)
def test_contradiction_is_said_and_lowers_confidence(against: Values) -> None:
    """What speaks against a bottleneck is listed with its evidence and costs confidence."""
    without, with_it = advised(DECODING, KNOWN), advised({**DECODING, **against}, KNOWN)
    assert binding_of(with_it) == binding_of(without)
    assert len(with_it.diagnosis.contradicts) == len(without.diagnosis.contradicts) + 1
    assert with_it.diagnosis.contradicts[-1].evidence != ()
    assert with_it.diagnosis.confidence < without.diagnosis.confidence


def test_claim_that_rests_on_a_disputed_figure_is_less_sure_and_says_so() -> None:
    """Two sources of the time per token; one of a figure that the claim does not rest on costs nothing."""
    seen = served(DECODING)
    sure = advise_served(seen, KNOWN).diagnosis
    (cited,) = [item for item in seen.items if item.name == N.TPOT_MS_MEAN]
    disputed = msgspec.structs.replace(cited, disputed="30 by the engine, 90 by its log")
    other = msgspec.structs.replace(cited, id="x", name="unheard_of", disputed="1 and 2")
    items = [disputed if item is cited else item for item in seen.items]
    found = advise_served(Readings((*items, other)), KNOWN).diagnosis
    assert found.confidence < sure.confidence
    assert found.contradicts == (
        *sure.contradicts,
        Finding(
            text="two sources of tpot_ms_mean disagree: 30 by the engine, 90 by its log",
            evidence=(cited.id,),
        ),
    )
    beside = advise_served(Readings((*seen.items, other)), KNOWN).diagnosis
    assert beside.confidence == sure.confidence


def test_hits_that_a_proxy_denies_lower_the_confidence_in_a_prefill() -> None:
    """How much a prefill computes rests on them."""
    values: Values = {**PREFILLING, N.PREFIX_HIT_SHARE: 0.1}
    alone = advised(values, KNOWN).diagnosis
    facts = msgspec.structs.replace(KNOWN, cache=CacheFacts(proxy_hit_share=0.9))
    beside = advised(values, facts).diagnosis
    assert beside.confidence < alone.confidence
    assert beside.contradicts[-1].text.startswith("two sources of the hits disagree: 10%")


def test_confidence_grows_with_independent_corroboration() -> None:
    """Gauges that agree with times, and a KV share that rules memory out, each make the queue surer."""
    bare: Values = {N.QUEUE_SHARE: 0.8, N.KV_USED_SHARE_MAX: 0.6, N.TTFT_MS_MEAN: 900}
    gauges: Values = {**bare, N.RUNNING_MEAN: 10, N.WAITING_MEAN: 40}
    free: Values = {**gauges, N.KV_USED_SHARE_MAX: 0.2}
    confidence = [advised(values).diagnosis.confidence for values in (bare, gauges, free)]
    assert confidence == sorted(set(confidence))
    assert binding_of(advised(bare)) == (Phase.QUEUE, Resource.ADMISSION)


def test_prefills_that_stall_decodes_are_blamed_on_prefill() -> None:
    """Where steps are far slower than they cost and prefill is most of the work, decode's time is its symptom."""
    values: Values = {
        N.RUNNING_MEAN: 4,
        N.WAITING_MEAN: 0,
        N.PREFILL_SHARE: 0.35,
        N.DECODE_SHARE: 0.65,
        N.TPOT_MS_MEAN: 300.0,
        N.OUTPUT_TOKENS_PER_S: 12.0,
        N.COMPUTED_PROMPT_TOKENS_PER_S: 80.0,
    }
    facts = ServedFacts(cost=MEASURED)
    advice = advised(values, facts)
    assert binding_of(advice) == (Phase.PREFILL, Resource.COMPUTE)
    chunk = advice.proposal("smaller_prefill_chunk")
    assert chunk is not None
    assert chunk.premise_holds is True
    calm = advised({**values, N.TPOT_MS_MEAN: 37.0, N.COMPUTED_PROMPT_TOKENS_PER_S: 5.0}, facts)
    assert binding_of(calm) == (Phase.DECODE, Resource.MEMORY_BANDWIDTH)


def test_phase_that_nobody_tells_may_be_the_larger_one() -> None:
    """A queue of 45% is not dominant while an unknown prefill may have as much."""
    values: Values = {N.QUEUE_SHARE: 0.45, N.KV_USED_SHARE_MAX: 0.3}
    advice = advised(values)
    assert advice.binding is None
    assert "may have up to 55%" in advice.diagnosis.unknown[0].text
    told = advised({**values, N.PREFILL_SHARE: 0.3, N.DECODE_SHARE: 0.25})
    assert binding_of(told) == (Phase.QUEUE, Resource.ADMISSION)


def test_proposals_come_narrowest_first_with_ceiling_and_reason() -> None:
    """Order is lexicographic, every lever says why or why not, and lossy ones come last."""
    advice = advised(DECODING, KNOWN)
    order = [p.narrowness for p in advice.proposals]
    assert order == sorted(order)
    assert all(p.because and p.premise for p in advice.proposals)
    held = [p.lever for p in advice.proposals if p.premise_holds]
    assert held == ["ngram_speculation", "four_bit_weights"]
    assert gain(advice, Technique.REPLICAS) == pytest.approx(0.01)
    assert any("do not add replicas" in f.text for f in advice.not_to_do)


def test_compute_bound_prefill_rules_four_bit_weights_out_and_eight_bit_in() -> None:
    """Unpacking weights costs compute where compute binds; eight-bit arithmetic saves it, if the device has it."""
    advice = advised(PREFILLING, KNOWN)
    four, eight = (
        advice.proposal("four_bit_weights"),
        advice.proposal("eight_bit_weights_and_activations"),
    )
    assert four is not None
    assert eight is not None
    assert (four.premise_holds, eight.premise_holds) == (False, True)
    unknown = advised(PREFILLING).proposal("eight_bit_weights_and_activations")
    assert unknown is not None
    assert unknown.premise_holds is None
    assert "--hardware" in unknown.because


def test_one_scrape_speaks_of_the_time_since_start() -> None:
    """Readings of a single scrape are marked, and nothing is judged stale by their own end."""
    values: Values = {N.QUEUE_SHARE: 0.8, N.KV_USED_SHARE_MAX: 0.2}
    advice = advise_served(served(values, note="since start 600 s ago"), ServedFacts())
    assert WarningKind.SINCE_START in kinds(advice)
    assert WarningKind.SINCE_START not in kinds(advised(values))


def test_idle_moment_says_nothing_of_the_time_since_start() -> None:
    """With one scrape after the load the gauges are left out: no KV is called free, and the past is still judged."""
    past: Values = {
        **DECODING,
        N.RUNNING_MEAN: 0,
        N.KV_USED_SHARE_MEAN: 0.0,
        N.KV_USED_SHARE_MAX: 0.0,
    }
    life = advise_served(served(past, note="since start 600 s ago"), ServedFacts(cost=MEASURED))
    assert life.activity is Activity.IDLE
    assert not any("do not buy memory" in found.text for found in life.not_to_do)
    assert "decode dominates with 90%" in life.diagnosis.unknown[0].text
    assert life.outcome is Outcome.HEALTHY
    queued = {**past, N.QUEUE_SHARE: 0.5, N.DECODE_SHARE: 0.4}
    busy = advise_served(served(queued, note="since start 600 s ago"), ServedFacts())
    assert (busy.healthy, busy.outcome) == (None, Outcome.CANNOT_TELL)
    window = advised({N.RUNNING_MEAN: 0, N.WAITING_MEAN: 0})
    assert (window.activity, window.outcome) == (Activity.IDLE, Outcome.HEALTHY)


def test_engine_that_deals_kv_out_by_slot_queues_for_slots_only() -> None:
    """Where KV is given to slots at the start, a waiting request waits for a slot, and KV usage is not missed."""
    values: Values = {
        N.RUNNING_MEAN: 4,
        N.WAITING_MEAN: 12,
        N.PREFILL_SHARE: 0.4,
        N.DECODE_SHARE: 0.6,
    }
    slots = ServedFacts(effective={"engine": "llamacpp"})
    assert binding_of(advised(values, slots)) == (Phase.QUEUE, Resource.ADMISSION)
    assert binding_of(advised(values)) is None
    limited = advised({**values, N.RANKS_SATURATED: 1, N.RANKS: 1})
    assert binding_of(limited) == (Phase.QUEUE, Resource.ADMISSION)


def test_memory_ceiling_alone_tells_a_decode_that_comes_near_it_and_nothing_else() -> None:
    """Where compute's ceiling is unknown, a step near the memory's floor is bound by it; one far off cannot be told."""
    half_known = msgspec.structs.replace(DEVICE, flops_16bit=None)
    facts = ServedFacts(model=SERVED_8B, accelerator=half_known)
    near = advised({**DECODING, N.TPOT_MS_MEAN: 7.0}, facts)
    assert binding_of(near) == (Phase.DECODE, Resource.MEMORY_BANDWIDTH)
    for tpot, said in ((20.0, "ceiling of compute is not known"), (2.0, "which cannot be")):
        far = advised({**DECODING, N.TPOT_MS_MEAN: tpot}, facts)
        assert far.binding is None
        assert said in far.diagnosis.unknown[0].text


def test_stalls_are_told_by_presence_where_work_is_not_predicted() -> None:
    """With the memory's ceiling alone, requests that are always in prefill take their part of a slowed decode."""
    facts = ServedFacts(
        model=SERVED_8B, accelerator=msgspec.structs.replace(DEVICE, flops_16bit=None)
    )
    values: Values = {
        N.RUNNING_MEAN: 4, N.WAITING_MEAN: 0, N.PREFILL_SHARE: 0.5, N.DECODE_SHARE: 0.5,
        N.TPOT_MS_MEAN: 60.0,
    }  # fmt: skip
    assert binding_of(advised(values, facts)) == (Phase.PREFILL, Resource.COMPUTE)
    assert advised(values).binding is None


def test_gauges_that_tell_the_queue_do_not_corroborate_themselves() -> None:
    """Little's law and the gauges it is made of are one piece of evidence; prefill is not told by subtraction then."""
    advice = advised(OVERLOADED)
    assert [f.text for f in advice.diagnosis.supports if "wait and" in f.text] == []
    assert gain(advice, Technique.PREFIX_CACHING) is None
    prefill = advice.diagnosis.phase(Phase.PREFILL)
    assert prefill is not None
    assert prefill.share is None


def test_few_requests_name_nothing_dominant() -> None:
    """Three requests are no bottleneck, however they spent their time."""
    items = tuple(
        served_evidence(name, value, samples=3, window=Window(0.0, 60.0))
        for name, value in (
            (N.TTFT_MS_MEAN, 900.0),
            (N.QUEUE_SHARE, 0.9),
            (N.KV_USED_SHARE_MAX, 0.1),
        )
    )
    found = diagnose_served(Readings(items), ServedFacts())
    assert (found.dominant_phase, found.samples) == (None, 3)
    assert "3 requests are too few" in found.unknown[0].text


def test_order_of_readings_and_unknown_names_change_nothing() -> None:
    """Any order gives the same advice, and so does a reading that no rule asks for."""
    items = served(OVERLOADED).items
    extra = served_evidence("something_new", 7.0)
    plain = advise_served(Readings(items), ServedFacts())
    turned = advise_served(Readings(items[::-1]), ServedFacts())
    more = advise_served(Readings((*items, extra)), ServedFacts())
    assert (turned.binding, turned.warnings, turned.proposals) == (
        plain.binding, plain.warnings, plain.proposals,
    )  # fmt: skip
    assert (more.binding, more.warnings) == (plain.binding, plain.warnings)
