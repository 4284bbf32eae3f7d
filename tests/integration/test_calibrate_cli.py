"""`trimtab calibrate`: a measurement in, an engine model with its error out."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from events_kit import SteppingClock
from sim_kit import LIMITS, engine_lines, measurement, recorded_day

from trimtab.core.events import RequestServed
from trimtab.interfaces.calibrate_inputs import read_measurement
from trimtab.interfaces.cli import main
from trimtab.runtime.ledger import SqliteLedger
from trimtab.sim.scenario import parse_scenario

ENGINE = ("--kv-tokens", str(LIMITS.kv_tokens), "--streams", str(LIMITS.streams_max))


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Requests as an engine of known cost served them."""
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(engine_lines(measurement(40))))
    return path


def run(*arguments: object) -> Result:
    """Run the command with few simulations."""
    words = ("calibrate", *arguments, "--tries", 60)
    return CliRunner().invoke(main, [str(word) for word in words])


def test_measurement_becomes_a_model_with_its_error(measured: Path) -> None:
    """The step's formula, errors of what was not fitted by metric and statistic, and what was never measured."""
    told = run(measured, *ENGINE)
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    for words in (
        "fitted on the first 20 requests, scored on the other 20",
        "step = ",
        "x context",
        "throughput of the whole measurement",
    ):
        assert words in text
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for statistic in ("mean", "p50", "p95"):
            assert any(metric in row and statistic in row for row in told.stdout.splitlines())
    assert "queued" in text.partition("not measured (fewer than 10 fitted requests): ")[2]


def test_model_on_hardware_is_priced_without_a_measurement(tmp_path: Path) -> None:
    """By a roofline where no kernel was measured; what is written is a replica of a scenario without any regime."""
    out = tmp_path / "replica.toml"
    asked = ("--model", "meta-llama/Llama-3.1-8B", "--hardware", "RTX 4090")
    told = run(*asked, "--out", out)
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    for words in ("roofline of meta-llama/Llama-3.1-8B on RTX 4090", "step = ", "no engine was"):
        assert words in text
    rest = 'name = "x"\n[fleet]\nreplicas = 1\n[workload]\nduration_s = 1\n'
    scenario = parse_scenario(
        f"{rest.splitlines()[0]}\n{out.read_text()}\n{rest.partition(chr(10))[2]}", source="x"
    )
    assert scenario.replica.cost.regimes == ()
    # 24 GiB less 16 GB of weights and the engine's buffers, at 128 KiB a token.
    assert 30_000 < scenario.replica.kv_tokens < 48_000


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--model", "Qwen/Qwen3-32B"), "--model and --hardware go together"),
        ((), "give MEASUREMENTS, or --model and --hardware"),
        (("--model", "Qwen/Qwen3-32B", "--hardware", "H1000"), "no accelerator 'H1000' is known"),
        (("--model", "Qwen/Qwen3-32B", "--hardware", "RTX 4090"), "does not fit"),
        (
            ("--model", "Qwen/Qwen3-32B", "--hardware", "H100", "--tp", "3"),
            "tp: 64 heads do not divide",
        ),
        (
            ("--model", "Qwen/Qwen3-32B", "--hardware", "H100", "--engine", "slots"),
            "--engine slots and",
        ),
    ],
)
def test_model_that_cannot_be_priced_says_why(asked: tuple[str, ...], said: str) -> None:
    """One line that names the option."""
    told = run(*asked)
    assert told.exit_code != 0
    assert said in " ".join(told.output.split())


def test_measurement_needs_the_kv_that_its_engine_had(measured: Path) -> None:
    """It is not fitted, and no default would be right."""
    told = run(measured)
    assert told.exit_code == 2
    assert "--kv-tokens is missing" in told.output


def test_json_has_the_same_with_every_figure(measured: Path) -> None:
    """For other programs; the unseen half is told within a few per cent."""
    (found,) = json.loads(run(measured, *ENGINE, "--json").stdout)
    assert found["source"] == str(measured)
    assert found["limits"]["kv_tokens"] == LIMITS.kv_tokens
    assert (found["fitted"]["fitted"], found["fitted"]["scored"]) == (20, 20)
    assert found["regimes"]["queued"] == [0, 0]
    overall = [one for one in found["fitted"]["errors"] if one["regime"] is None]
    assert len(overall) == 9
    assert max(abs(one["error"]) for one in overall) < 0.10


def test_model_that_was_written_can_be_simulated(measured: Path, tmp_path: Path) -> None:
    """The file is the [replica] part of a scenario and says where it came from."""
    out = tmp_path / "replica.toml"
    assert run(measured, *ENGINE, "--out", out).exit_code == 0
    rest = (
        "[fleet]\nreplicas = 1\n[workload]\nduration_s = 20\n[workload.synthetic]\nrate_per_s = 4\n"
    )
    text = 'name = "fitted"\n' + out.read_text() + rest
    scenario = parse_scenario(text, source="x.toml")
    assert scenario.replica.kv_tokens == LIMITS.kv_tokens
    assert scenario.replica.cost.source == f"fitted to 20 requests of {measured}"
    assert scenario.replica.cost.regimes == ("light",)
    (tmp_path / "x.toml").write_text(text)
    simulated = CliRunner().invoke(main, ["simulate", str(tmp_path / "x.toml")])
    assert simulated.exit_code == 0, simulated.output
    assert f"fitted to 20 requests of {measured}" in "".join(simulated.stdout.split("\n"))
    assert [path.name for path in tmp_path.glob(".*.part")] == []


def test_several_measurements_are_fitted_each_on_its_own(measured: Path) -> None:
    """One answer for each, in order; --out takes one only."""
    assert len(json.loads(run(measured, measured, *ENGINE, "--json").stdout)) == 2
    assert run(measured, measured, *ENGINE, "--out", measured.with_name("o.toml")).exit_code == 2


def test_ledger_is_a_measurement_of_all_its_replicas(tmp_path: Path) -> None:
    """Times are the gateway's; each request keeps its replica and what was reused of its prompt."""
    path, day = tmp_path / "ledger.sqlite", recorded_day(30)
    sink = SqliteLedger(path, clock=SteppingClock())
    for event in day:
        sink.append(event, cause_id=None)
    sink.close()
    served = [event.record for event in day if isinstance(event, RequestServed)]
    found = read_measurement(path)
    assert [one.replica for one in found] == [record.replica for record in served]
    assert found[0].at_s == 0.0
    assert {(one.input_tokens, one.cached_tokens) for one in found} == {(400, 288)}
    assert {one.computed_tokens for one in found} == {400 - 288}
    assert [one.ttft_ms for one in found] == pytest.approx([record.ttft_ms for record in served])
    told = run(path, "--kv-tokens", 100_000)
    assert told.exit_code == 0, told.output
    assert "2 replicas" in told.stdout


RECORDED = Path(__file__).parents[1] / "data" / "embedded_fleet" / "load-0.5.jsonl"
SLOTS = ("--engine", "slots", "--streams", 4, "--kv-tokens", 8192, "--budget-tokens", 256)


def test_recorded_requests_of_slots_become_a_replica_that_shares_its_host(tmp_path: Path) -> None:
    """The kind of engine, the host and what replicas take from each other are in the file; it can be simulated."""
    out = tmp_path / "replica.toml"
    asked = ("--host", 2, 1, 2, "--fit-share", 1, "--tries", 40)
    told = run(RECORDED, *SLOTS, *asked, "--out", out)
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    assert "none left to score; 2 replicas" in text
    assert "each other replica at work on the host adds" in text
    rest = 'name = "x"\n' + out.read_text() + "[fleet]\nreplicas = 2\n[workload]\n"
    scenario = parse_scenario(rest, source="x.toml")
    assert (scenario.replica.engine, scenario.replica.similarity) == ("slots", 0.5)
    assert scenario.replica.host is not None
    assert (scenario.replica.host.cores, scenario.replica.host.replicas) == (2, 2)


def test_host_is_refused_for_paged_replicas(measured: Path) -> None:
    """Their cores are not modelled."""
    ended = run(measured, *ENGINE, "--host", 2, 1, 2)
    assert (ended.exit_code, "--host is for --engine slots" in ended.output) == (2, True)


def test_recorded_requests_without_times_are_no_measurement(tmp_path: Path) -> None:
    """The line and the field are named."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at_s": 0, "input_tokens": 9, "output_tokens": 2}\n')
    ended = run(path, *SLOTS)
    assert ended.exit_code == 1
    assert "line 1, first_token_s" in " ".join(ended.output.split())


@pytest.mark.parametrize(
    ("at", "field", "value", "told"),
    [
        (3, "first_token_ts", 0.0, "line 4, queued_ts"),
        (0, "input_toks", 0, "input_toks"),
        (5, "output_toks", None, "output_toks"),
    ],
)
def test_wrong_measurement_ends_with_1_and_names_line_and_field(
    measured: Path, at: int, field: str, value: object, told: str
) -> None:
    """Times that go back, a prompt of no tokens, an unknown count."""
    lines = measured.read_text().splitlines()
    lines[at] = json.dumps(json.loads(lines[at]) | {field: value})
    measured.write_text("\n".join(lines))
    ended = run(measured, *ENGINE)
    assert ended.exit_code == 1
    text = " ".join(ended.output.split())
    assert told in text
    assert f"line {at + 1}" in text


def test_too_few_requests_end_with_1(measured: Path) -> None:
    """What can be fitted is said."""
    measured.write_text("\n".join(engine_lines(measurement(8))))
    ended = run(measured, *ENGINE)
    assert (ended.exit_code, "8 requests are too few" in ended.output) == (1, True)


def test_limits_that_cannot_be_right_end_with_1(measured: Path) -> None:
    """A request that was served could not have run."""
    ended = run(measured, "--kv-tokens", 256)
    assert (ended.exit_code, "give the engine's own" in " ".join(ended.output.split())) == (1, True)


def test_kv_must_be_said(measured: Path) -> None:
    """It is not fitted, and a wrong default would be fitted away into the costs."""
    ended = run(measured)
    assert (ended.exit_code, "--kv-tokens" in ended.output) == (2, True)


def test_recorded_requests_of_a_paged_engine_name_the_blocks_that_they_share(
    tmp_path: Path,
) -> None:
    """`like` and `shared_tokens` become equal names of full blocks; slots find their own, so none are made for them."""
    path = tmp_path / "recorded.jsonl"
    lines = [
        {"at_s": 0.0, "input_tokens": 70, "output_tokens": 5},
        {"at_s": 1.0, "input_tokens": 90, "output_tokens": 5, "like": 0, "shared_tokens": 40},
    ]
    times = [{"first_token_s": at + 0.5, "last_token_s": at + 0.9} for at in (0.0, 1.0)]
    path.write_text("\n".join(json.dumps(a | b) for a, b in zip(lines, times, strict=True)))
    first, second = read_measurement(path, block_tokens=16)
    assert (len(first.hashes), len(second.hashes)) == (4, 5)
    assert first.hashes[:2] == second.hashes[:2]
    assert set(first.hashes[2:]).isdisjoint(second.hashes[2:])
    assert [one.hashes for one in read_measurement(path)] == [(), ()]
