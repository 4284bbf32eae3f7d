"""The fit of a step cost: it finds the engine that made the measurement, and says how far it is off."""

import msgspec
import pytest
from sim_kit import LIMITS, TRUTH, measurement, served_by

from trimtab.core.step_cost import StepCost
from trimtab.sim.fit import PARAMETERS, Fitted, Limits, fit, guess, serve
from trimtab.sim.jobs import HostSpec, Job, Listener
from trimtab.sim.kernel import Kernel
from trimtab.sim.measured import Measured, Regime
from trimtab.sim.replica import Replica

HOST = HostSpec(cores=2, threads=1, replicas=2)
SLOTS = Limits(kv_tokens=8000, budget_tokens=256, streams_max=4, similarity=0.5, host=HOST)
SLOW = StepCost(
    overhead_ms=10.0,
    weights_ms=10.0,
    token_ms=4.0,
    stream_ms=5.0,
    context_ms=0.005,
    pair_ms=0.005,
    start_ms=8.0,
    source="made up",
)


def on_a_host(unrest: float, count: int = 40) -> list[Measured]:
    """What two replicas with slots on a host of so much unrest served, by a chance that no fit draws."""
    asked = [
        Measured(
            at_s=number * 1.1,
            input_tokens=60 + 17 * (number * 7 % 11),
            output_tokens=4 + number * 5 % 9,
            first_token_s=0.0,
            last_token_s=0.0,
            replica=f"r{number % 2}",
            cached_tokens=40 * (number % 2),
        )
        for number in range(count)
    ]
    spread = {"unrest_prefill": unrest, "unrest_decode": unrest / 2.0, "unrest_s": 8.0}
    host = msgspec.structs.replace(HOST, contention=0.1, **spread)
    return served_by(asked, SLOTS.spec(SLOW, host), seed=77)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    """A fit on the first half of what an engine of known cost served."""
    return fit(measurement(60), LIMITS, source="a made-up engine", tries_max=150)


def test_fit_finds_an_engine_that_serves_the_unseen_half_alike(fitted: Fitted) -> None:
    """Within 3% in every statistic, and in throughput."""
    overall = [error for error in fitted.errors if error.regime is None]
    assert len(overall) == 9
    assert [error for error in overall if abs(error.error) > 0.03] == []
    assert abs(fitted.throughput_error) < 0.01


def test_fit_says_on_what_it_was_made(fitted: Fitted) -> None:
    """Half of the requests each, and where they came from."""
    assert (fitted.fitted, fitted.scored) == (30, 30)
    assert fitted.cost.source == "fitted to 30 requests of a made-up engine"
    assert fitted.tries <= 160


def test_fit_tells_what_a_step_costs(fitted: Fitted) -> None:
    """Single parameters can stand for each other; the time of a usual step cannot."""
    for tokens, streams in ((1, 1), (8, 8), (600, 4)):
        found = fitted.cost.step_ms(tokens=tokens, streams=streams, context_tokens=streams * 800)
        true = TRUTH.step_ms(tokens=tokens, streams=streams, context_tokens=streams * 800)
        assert found == pytest.approx(true, rel=0.15)


def test_fit_is_the_same_every_time() -> None:
    """Nothing is drawn."""
    first, second = (fit(measurement(14), LIMITS, source="x", tries_max=20) for _ in range(2))
    assert first == second


def test_fit_tells_of_every_try_with_the_best_so_far() -> None:
    """The loss that is told never grows."""
    told: list[tuple[int, float]] = []
    fit(
        measurement(14),
        LIMITS,
        source="x",
        tries_max=20,
        on_try=lambda number, loss: told.append((number, loss)),
    )
    assert [number for number, _ in told] == list(range(1, len(told) + 1))
    losses = [loss for _, loss in told]
    assert losses == sorted(losses, reverse=True)


def test_too_few_requests_are_refused() -> None:
    """Six parameters need six requests on both sides."""
    with pytest.raises(ValueError, match="11 requests are too few"):
        fit(measurement(11), LIMITS, source="x")


def test_limits_under_which_a_served_request_cannot_run_are_refused() -> None:
    """It ran, so the limits are wrong; the message names what to give."""
    small = msgspec.structs.replace(LIMITS, kv_tokens=256)
    with pytest.raises(ValueError, match="give the engine's own kv_tokens"):
        serve(measurement(12), small.spec(TRUTH))


def test_starting_guess_is_of_the_right_order() -> None:
    """The search stays within a factor of it."""
    start = guess(measurement(40), LIMITS, range(40))
    assert 1 / 3 < (start.overhead_ms + start.weights_ms) / 14.0 < 3
    assert 1 / 3 < start.token_ms / TRUTH.token_ms < 3
    assert min(getattr(start, name) for name in PARAMETERS) > 0.0


def test_error_of_a_wrong_cost_is_seen(fitted: Fitted) -> None:
    """The scores are no formality: steps that take twice as long are off by as much."""
    slow = msgspec.structs.replace(
        TRUTH, **{name: 2.0 * getattr(TRUTH, name) for name in PARAMETERS}
    )
    real = measurement(20, gap_s=5.0)
    served, _ = serve(real, LIMITS.spec(slow))
    ratios = [made.e2e_ms / one.e2e_ms for one, made in zip(real, served, strict=True)]
    assert ratios == pytest.approx([2.0] * 20, rel=0.01)
    assert {error.regime for error in fitted.errors} <= {None, *Regime}


def test_fit_finds_how_restless_a_host_is() -> None:
    """From forty requests and another chance than the fit's own: within a factor of two."""
    found = fit(on_a_host(0.4), SLOTS, source="a made-up host", fit_share=1.0, tries_max=60)
    assert found.host is not None
    assert 0.2 < found.host.unrest_prefill < 0.8
    assert 0.1 < found.host.unrest_decode < 0.4
    assert found.tries <= 80


def test_host_at_rest_is_found_to_be_calm() -> None:
    """Where the same work always takes the same time, a chance that is put in only makes it worse."""
    found = fit(on_a_host(0.0), SLOTS, source="a made-up host", fit_share=1.0, tries_max=60)
    assert found.host is not None
    assert max(found.host.unrest_prefill, found.host.unrest_decode) < 0.1


def test_chance_of_a_measurement_is_the_same_every_time() -> None:
    """A fit with unrest draws the same chances in each of its runs."""
    real = on_a_host(0.3, 14)
    first, second = (fit(real, SLOTS, source="x", fit_share=1.0, tries_max=30) for _ in range(2))
    assert first == second


def test_fit_with_unrest_tells_of_a_loss_that_never_grows() -> None:
    """The second search goes on counting where the first one ended."""
    told: list[tuple[int, float]] = []
    fit(
        on_a_host(0.3, 14),
        SLOTS,
        source="x",
        fit_share=1.0,
        tries_max=30,
        on_try=lambda number, loss: told.append((number, loss)),
    )
    assert [number for number, _ in told] == list(range(1, len(told) + 1))
    losses = [loss for _, loss in told]
    assert losses == sorted(losses, reverse=True)


REUSING = Limits(kv_tokens=480_000, streams_max=128)
LONG = msgspec.structs.replace(TRUTH, context_ms=2e-4)


def with_a_shared_beginning(count: int, shared: int) -> list[Measured]:
    """What an engine that finds blocks by their names served: prompts of one beginning, and what it reused of them."""
    kernel = Kernel()
    listener = Listener(first_token=lambda *_: None, ended=lambda *_: None)
    replica = Replica(REUSING.spec(LONG), kernel, listener)
    sent = []
    for number in range(count):
        own = 200 + 137 * (number * 7 % 11)
        whole, alike = (shared + own) // 16, shared // 16
        names = [at if at < alike else (number + 1) * 100_000 + at for at in range(whole)]
        output = 60 + 23 * (number * 5 % 9)
        job = Job(id=number, input_tokens=shared + own, output_tokens=output, hashes=names)
        at_s = 0.5 * number + 0.3 * (number * 3 % 4)
        kernel.at(at_s, replica.submit, job)
        sent.append((at_s, job))
    kernel.run()
    return [
        Measured(
            at_s=at_s,
            input_tokens=job.input_tokens,
            output_tokens=job.output_tokens,
            first_token_s=job.first_token_s or 0.0,
            last_token_s=job.finished_s or 0.0,
            cached_tokens=job.cached_tokens,
        )
        for at_s, job in sorted(sent, key=lambda one: one[0])
    ]


def test_reused_tokens_are_context_though_they_are_not_computed() -> None:
    """The true engine serves a measurement with reuse at the measured times: nothing of its prompts has vanished."""
    real = with_a_shared_beginning(30, 6_000)
    assert sum(one.cached_tokens == 6_000 for one in real) >= 28
    served, _ = serve(real, REUSING.spec(LONG))
    assert [one.ttft_ms for one in served] == pytest.approx([one.ttft_ms for one in real])
    assert [one.e2e_ms for one in served] == pytest.approx([one.e2e_ms for one in real])


def test_fit_finds_what_context_costs_where_most_of_a_prompt_is_reused() -> None:
    """A step of twenty streams of such a length, more than were measured at once, is as long as it truly is."""
    real = with_a_shared_beginning(60, 6_000)
    found = fit(real, REUSING, source="an engine with reuse", tries_max=150)
    asked = {"tokens": 20, "streams": 20, "context_tokens": 20 * 6_800}
    assert found.cost.step_ms(**asked) == pytest.approx(LONG.step_ms(**asked), rel=0.1)
    assert found.cost.context_ms == pytest.approx(LONG.context_ms, rel=0.25)


def test_beginning_that_requests_must_have_shared_is_held_once() -> None:
    """A KV of 40,000 tokens served twelve prompts of 6,000 and more at once; with a copy each five would have run."""
    tight = msgspec.structs.replace(REUSING, kv_tokens=40_000)
    real = [
        msgspec.structs.replace(one, at_s=0.001 * at, cached_tokens=6_000 if at else 0)
        for at, one in enumerate(with_a_shared_beginning(12, 6_000))
    ]
    roomy = served_by(real, REUSING.spec(LONG))
    served, preemptions = serve(roomy, tight.spec(LONG))
    assert preemptions == 0
    assert [one.e2e_ms for one in served] == pytest.approx([one.e2e_ms for one in roomy])
