"""The simulator's engine model against real vLLM runs: fitted on the first half of each, scored on the rest."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest

from trimtab.core.accelerators import Accelerator, find_accelerator
from trimtab.core.step_cost import StepCost
from trimtab.interfaces.calibrate_tables import Served, price
from trimtab.sim.fit import Fitted, Limits, fit, serve
from trimtab.sim.measured import Error, Measured, errors_of, read_engine_times, regimes_of

TRIES = 80
PRO = "Llama-3.1-8B"
CONSUMER = "RTX4090/Llama-3.1-8B"
LIMITS = {
    # Of the first the run does not tell its KV; 480,000 tokens are 90% of 96 GB less weights, and were never full.
    PRO: Limits(kv_tokens=480_000, streams_max=128),
    CONSUMER: Limits(kv_tokens=2_588 * 16, streams_max=256),
}
SERVING_ERROR_MAX = 0.08
THROUGHPUT_ERROR_MAX = 0.03


@cache
def run_of(folder: Path) -> tuple[Measured, ...]:
    """The requests of a run as its engine saw them."""
    path = folder / "vllm" / "requests.jsonl"
    return tuple(read_engine_times(path.read_text().splitlines(), file=str(path)))


@cache
def fitted(data: Path, name: str) -> Fitted:
    """What the first half of a run makes of the model."""
    measured = run_of(data / "serving" / "llmservingsim" / name)
    return fit(measured, LIMITS[name], source=name, tries_max=TRIES)


@pytest.fixture
def runs(public_data: Path) -> Path:
    """Where the runs lie; a person without them is told so."""
    if not (public_data / "serving" / "llmservingsim").is_dir():
        pytest.skip("public data: the runs of LLMServingSim are absent")
    return public_data


@pytest.mark.parametrize("name", [PRO, CONSUMER])
def test_limits_are_those_the_engine_was_started_with(runs: Path, name: str) -> None:
    """They are not fitted, so a wrong one would be fitted away into the costs."""
    meta = json.loads((runs / "serving/llmservingsim" / name / "vllm/meta.json").read_text())
    told = meta["engine_kwargs"]
    expected = (told["max_num_batched_tokens"], told["max_num_seqs"])
    assert expected == (LIMITS[name].budget_tokens, LIMITS[name].streams_max)


@pytest.mark.parametrize("name", [PRO, CONSUMER])
def test_requests_that_were_not_fitted_come_out_as_measured(runs: Path, name: str) -> None:
    """TTFT, TPOT and end-to-end time within 8% in mean, median and 95th percentile; throughput within 3%."""
    found = fitted(runs, name)
    overall = [error for error in found.errors if error.regime is None]
    assert len(overall) == 9
    assert [error for error in overall if abs(error.error) > SERVING_ERROR_MAX] == []
    assert abs(found.throughput_error) <= THROUGHPUT_ERROR_MAX


@pytest.mark.parametrize(("fitted_on", "told_of"), [(PRO, CONSUMER), (CONSUMER, PRO)])
def test_model_scaled_to_the_other_machine_says_its_error(
    runs: Path, fitted_on: str, told_of: str, record_property: Callable[[str, object], None]
) -> None:
    """Without a target: what is told of a machine that was never measured is reported, and is of the right order."""
    cost = _scaled(fitted(runs, fitted_on).cost, *(_machine(name) for name in (fitted_on, told_of)))
    measured = run_of(runs / "serving" / "llmservingsim" / told_of)
    served, _ = serve(measured, LIMITS[told_of].spec(cost))
    everyone = range(len(measured))
    errors = errors_of(measured, served, regimes_of(measured), everyone, ())
    overall = [error for error in errors if error.regime is None]
    for error in overall:
        record_property(f"{fitted_on} to {told_of}: {_words(error)}", round(error.error, 3))
    assert [_words(error) for error in overall if not -0.5 < error.error < 1.0] == []


@pytest.mark.parametrize(
    ("name", "hardware"), [(PRO, "RTX PRO 6000 Server"), (CONSUMER, "RTX 4090")]
)
def test_model_that_nobody_fitted_says_its_error(
    runs: Path, name: str, hardware: str, record_property: Callable[[str, object], None]
) -> None:
    """From kernel tables or a roofline alone: reported, and of the right order."""
    measured, limits = run_of(runs / "serving" / "llmservingsim" / name), LIMITS[name]
    served = Served(model="meta-llama/Llama-3.1-8B", hardware=hardware)
    priced = price(served, kv_tokens=limits.kv_tokens, sizes=limits)
    made, _ = serve(measured, limits.spec(priced.found.cost))
    errors = errors_of(measured, made, regimes_of(measured), range(len(measured)), ())
    overall = [error for error in errors if error.regime is None]
    for error in overall:
        record_property(f"{name} from {priced.source.value}: {_words(error)}", error.error)
    assert [_words(error) for error in overall if not -0.5 < error.error < 0.5] == []


def _words(error: Error) -> str:
    return f"{error.metric} {error.statistic}"


def _machine(name: str) -> Accelerator:
    # The run's configuration says 1,597 GB/s, which is the server edition.
    return find_accelerator("RTX 4090" if name == CONSUMER else "RTX PRO 6000 Server")


def _scaled(cost: StepCost, old: Accelerator, new: Accelerator) -> StepCost:
    """What is read goes with the bandwidth, what is multiplied with the arithmetic; the host's part stays."""
    assert old.memory_bytes_per_s is not None
    assert new.memory_bytes_per_s is not None
    assert old.flops_16bit is not None
    assert new.flops_16bit is not None
    reads = old.memory_bytes_per_s / new.memory_bytes_per_s
    sums = old.flops_16bit / new.flops_16bit
    return msgspec.structs.replace(
        cost,
        weights_ms=cost.weights_ms * reads,
        context_ms=cost.context_ms * reads,
        token_ms=cost.token_ms * sums,
        pair_ms=cost.pair_ms * sums,
        source=f"{cost.source}, scaled from {old.name} to {new.name}",
    )
