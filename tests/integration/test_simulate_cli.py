"""`trimtab simulate`: what it prints and writes, and how wrong inputs end."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from trimtab.core.events import Envelope
from trimtab.core.state import rebuild
from trimtab.interfaces.cli import main
from trimtab.sim.compare import Comparison
from trimtab.sim.lever_records import record_of
from trimtab.sim.public_policies import PUBLIC
from trimtab.sim.sections import RolloutSection

SCENARIO = """name = "two of them"
warm_s = 2
[replica]
kv_tokens = 8192
block_tokens = 64
streams_max = 16
[replica.cost]
overhead_ms = 2.0
weights_ms = 8.0
token_ms = 0.05
source = "made up"
[fleet]
replicas = 2
price_per_hour = 3.0
[objective]
ttft_ms = 300
[workload]
duration_s = 12
[workload.synthetic]
rate_per_s = 4.0
groups = 4
turns = 3
think_s = 1.0
"""
TRACED = SCENARIO.partition("[workload.synthetic]")[0]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def line(at_ms: int, tokens: int, ids: list[int], output: int = 20) -> str:
    """One line of a Mooncake trace."""
    entry = {"timestamp": at_ms, "input_length": tokens, "output_length": output, "hash_ids": ids}
    return json.dumps(entry)


TRACE = [line(at * 500, 1500, [0, 1, 10 + at]) for at in range(20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scenario of synthetic sessions, one for a trace, the trace, and a policy's file."""
    (tmp_path / "made.toml").write_text(SCENARIO)
    (tmp_path / "traced.toml").write_text(TRACED)
    (tmp_path / "trace.jsonl").write_text("\n".join(TRACE))
    (tmp_path / "tight.toml").write_text("[routing]\nload_bound = 1.0\n")
    return tmp_path


def run(*arguments: object) -> Result:
    """Run the command with the options given."""
    return CliRunner().invoke(main, ["simulate", *(str(one) for one in arguments)])


def read(result: Result) -> Comparison:
    """The JSON of a run, as its type."""
    assert result.exit_code == 0, result.output
    return msgspec.json.decode(result.stdout, type=Comparison)


def test_scenario_becomes_a_table_of_what_users_get(folder: Path) -> None:
    """Figures with units, how requests ended, and where the engine model comes from."""
    told = run(folder / "made.toml")
    assert told.exit_code == 0, told.output
    for words in ("two of them: 2 replicas", "engine model: made up", "TTFT p95", "reused", "shed"):
        assert words in told.stdout
    assert "from 2 to 12 s" in " ".join(told.stdout.split())


def test_same_scenario_and_seed_give_the_same_bytes(folder: Path) -> None:
    """Also with several policies; another seed gives others."""
    arguments = (folder / "made.toml", "--compare", "cache_tree", "--json")
    first, again = (run(*arguments).stdout for _ in range(2))
    assert first == again
    assert first != run(*arguments, "--seed", "9").stdout


def test_every_request_that_arrived_is_accounted_for(folder: Path) -> None:
    """Finished, shed, failed or in flight, for each policy."""
    found = read(run(folder / "made.toml", "--compare", "round_robin", "--json"))
    assert found.policies == ("prefix_affine", "round_robin")
    for one in (run.summary for run in found.runs):
        assert one.arrived == one.finished + one.shed + one.failed + one.in_flight > 10
    assert len({one.summary.arrived for one in found.runs}) == 1


def test_several_policies_follow_one_option(folder: Path) -> None:
    """As many as are named; without the option a second argument is an error."""
    asked = ("--compare", "round_robin", "cache_tree", "--json")
    assert read(run(folder / "made.toml", *asked)).policies == (
        "prefix_affine",
        "round_robin",
        "cache_tree",
    )
    told = run(folder / "made.toml", "cache_tree")
    assert told.exit_code == 2
    assert "other policies follow --compare" in told.output


def test_seeds_give_intervals_and_one_seed_says_that_it_does_not(folder: Path) -> None:
    """Whether a difference is chance cannot be told from one."""
    one = run(folder / "made.toml", "--compare", "round_robin")
    assert "whether a difference is chance is unknown" in " ".join(one.stdout.split())
    more = read(run(folder / "made.toml", "--compare", "round_robin", "--seeds", "3", "--json"))
    assert more.seeds == (1, 2, 3)
    assert len(more.runs) == 6
    assert {one.low is None for one in more.differences} == {False}
    shown = run(folder / "made.toml", "--compare", "round_robin", "--seeds", "3").stdout
    assert "paired by seed, 95% intervals" in shown


def test_report_is_one_page_and_one_file_of_figures(folder: Path) -> None:
    """The page needs nothing from elsewhere and has a picture for each figure; the JSON is what --json prints."""
    arguments = (folder / "made.toml", "--compare", "cache_tree", "--seeds", "2")
    told = run(*arguments, "--report", folder / "out")
    assert told.exit_code == 0, told.output
    assert {path.name for path in (folder / "out").iterdir()} == {"index.html", "result.json"}
    printed = run(*arguments, "--json").stdout
    assert (folder / "out" / "result.json").read_text().strip() == printed.strip()
    page = (folder / "out" / "index.html").read_text()
    assert page.count("<svg") >= 4
    assert "cache_tree" in page
    assert "<script" not in page
    assert "What this cannot say" in page


def test_cost_is_told_by_policy_in_table_page_and_json(folder: Path) -> None:
    """Replica-hours, their price and what tokens and good requests cost, with intervals over seeds and a picture."""
    words = ("--compare", "round_robin", "--seeds", 2, "--report", folder / "out")
    told = run(folder / "made.toml", *words)
    assert told.exit_code == 0, told.output
    rows = [line.split("│") for line in told.stdout.splitlines() if "│" in line]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    for name in ("replica-hours", "price", "per million output tokens", "per 1,000 good requests"):
        assert len(cells[name]) == 2
        assert all("\u00b1" in cell for cell in cells[name])
    found = msgspec.json.decode((folder / "out" / "result.json").read_bytes(), type=Comparison)
    for one in found.runs:
        assert one.cost is not None
        tokens, good = sum(one.output_tokens_by_replica), sum(one.course.good)
        assert one.cost_per_million_output_tokens == pytest.approx(one.cost * 1e6 / tokens)
        assert one.cost_per_thousand_good == pytest.approx(one.cost * 1e3 / good)
    compared = {one.metric for one in found.differences}
    assert {"cost_per_million_output_tokens", "cost_per_thousand_good"} <= compared
    page = (folder / "out" / "index.html").read_text()
    section = page.partition('<section id="cost">')[2].partition("</section>")[0]
    assert section.count("<svg") == 2
    assert "round_robin" in section


def test_fleet_without_a_price_has_no_cost(folder: Path) -> None:
    """Nobody asked what it costs."""
    (folder / "free.toml").write_text(SCENARIO.replace("price_per_hour = 3.0\n", ""))
    told = run(folder / "free.toml", "--report", folder / "out")
    assert told.exit_code == 0, told.output
    assert "per million output tokens" not in told.stdout
    assert 'id="cost"' not in (folder / "out" / "index.html").read_text()


def test_requests_still_running_at_the_end_are_told_and_can_be_left_out(folder: Path) -> None:
    """They count as not good whatever the policy does; with time to end, none runs."""
    short = SCENARIO.replace("duration_s = 12", "duration_s = 5")
    (folder / "short.toml").write_text(short)
    assert "still running at the end and counted as not good" in run(folder / "short.toml").stdout
    (folder / "long.toml").write_text(SCENARIO.replace("warm_s = 2", "warm_s = 2\ncool_s = 7"))
    told = run(folder / "long.toml")
    assert "from 2 to 5 s" in " ".join(told.stdout.split())
    assert "still running" not in told.stdout
    cut, ended = (read(run(folder / name, "--json")) for name in ("short.toml", "long.toml"))
    assert cut.runs[0].summary.arrived == ended.runs[0].summary.arrived
    assert ended.runs[0].summary.in_flight == 0 < cut.runs[0].summary.in_flight
    assert "still running" in " ".join(cut.notes)


def test_workload_without_a_request_is_an_error_that_says_what_to_raise(folder: Path) -> None:
    """Figures of nothing would look like figures."""
    (folder / "rare.toml").write_text(SCENARIO.replace("rate_per_s = 4.0", "rate_per_s = 0.001"))
    told = run(folder / "rare.toml")
    assert told.exit_code == 1
    words = " ".join(told.output.split())
    assert "rare.toml: no request arrives from 2 to 12 s under seed 1" in words
    assert "raise workload.synthetic.rate_per_s" in words


def test_trace_cut_at_the_end_is_told(folder: Path) -> None:
    """How many of its requests begin within the time that is simulated."""
    (folder / "cut.toml").write_text(TRACED.replace("duration_s = 12", "duration_s = 4.8"))
    words = "10 requests of the trace begin within workload.duration_s = 4.8 s"
    told = run(folder / "cut.toml", "--trace", folder / "trace.jsonl", "--report", folder / "out")
    assert words in told.stdout
    assert words in (folder / "out" / "index.html").read_text()
    whole = run(folder / "traced.toml", "--trace", folder / "trace.jsonl").stdout
    assert "20 requests of the trace begin within workload.duration_s = 12 s" in whole
    assert "of the trace begin" not in run(folder / "made.toml").stdout


def test_trace_without_a_request_is_named(folder: Path) -> None:
    """Of several files it must be clear which one."""
    (folder / "empty").write_text("\n")
    for kind in ("mooncake", "azure", "sessions", "recorded", "jsonl"):
        told = run(folder / "traced.toml", "--trace", folder / "empty", "--format", kind)
        assert told.exit_code == 1
        assert f"{folder / 'empty'}" in told.output.replace("\n", "")


def test_regimes_are_told_where_nothing_finished(folder: Path) -> None:
    """That nobody measured the model is no less true of a fleet that served nobody."""
    lost = "".join(f'[[faults]]\nat_s = 0\nkind = "lose"\nreplica = {at}\n' for at in (0, 1))
    (folder / "lost.toml").write_text(SCENARIO + lost)
    assert "does not say in which regimes" in run(folder / "lost.toml").stdout


def test_options_go_over_the_scenario(folder: Path) -> None:
    """More replicas and gateways, and what they cost."""
    found = read(
        run(
            folder / "made.toml",
            "--replicas",
            5,
            "--gateways",
            2,
            "--policy",
            "least_loaded",
            "--json",
        )
    )
    (one,) = found.runs
    assert (one.replicas, one.policy, len(one.output_tokens_by_replica)) == (5, "least_loaded", 5)
    assert one.cost == pytest.approx(one.replica_hours * 3.0)
    assert one.replica_hours == pytest.approx(5 * 12 / 3600)


def test_policy_file_is_called_by_its_name(folder: Path) -> None:
    """The routing of the file goes over the scenario's."""
    found = read(run(folder / "made.toml", "--compare", folder / "tight.toml", "--json"))
    assert found.policies == ("prefix_affine", "tight")


def test_every_policy_that_is_listed_can_be_simulated(folder: Path) -> None:
    """Our own and the public ones."""
    names = run(folder / "made.toml", "--policies").stdout.split()
    assert set(names) >= {"prefix_affine", "round_robin", "least_loaded", *PUBLIC}
    first, *others = names
    compared = [word for name in others for word in ("--compare", name)]
    found = read(run(folder / "made.toml", "--policy", first, *compared, "--json"))
    assert [one.policy for one in found.runs] == names
    assert min(one.summary.finished for one in found.runs) > 0


def test_trace_brings_its_shared_blocks(folder: Path) -> None:
    """All 20 prompts begin alike: all but the first on each replica reuse two blocks of three."""
    found = read(run(folder / "traced.toml", "--trace", folder / "trace.jsonl", "--json"))
    summary = found.runs[0].summary
    assert summary.arrived == 16  # of 20 in 10 s, those from 2 s on
    assert 0.5 < summary.hit_share <= 1024 / 1500


def test_trace_that_the_scenario_names_lies_beside_it(folder: Path) -> None:
    """Relative to the scenario, not to where the command runs."""
    text = TRACED.replace("duration_s = 12", 'duration_s = 12\ntrace = "trace.jsonl"')
    (folder / "named.toml").write_text(text)
    named = read(run(folder / "named.toml", "--json"))
    assert named == read(run(folder / "traced.toml", "--trace", folder / "trace.jsonl", "--json"))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([TRACE[2], TRACE[0]], "line 2, timestamp"),
        ([TRACE[0], line(500, 600, [0, 1, 2])], "line 2, hash_ids: 3 ids, but input_length 600"),
        ([line(0, 600, [0])], "line 1, hash_ids: 1 ids, but input_length 600 takes 2"),
        ([line(-5, 600, [0, 1])], "timestamp"),
        ([line(0, -1, [])], "input_length"),
        (['{"timestamp": 0}'], "line 1"),
        ([], "request"),
    ],
)
def test_wrong_trace_ends_with_1_and_names_line_and_field(
    folder: Path, lines: list[str], told: str
) -> None:
    """Unsorted, a hash beyond its input's length or too few, a negative time or length, a missing field, no request."""
    (folder / "bad.jsonl").write_text("\n".join(lines))
    ended = run(folder / "traced.toml", "--trace", folder / "bad.jsonl")
    assert ended.exit_code == 1
    assert told in " ".join(ended.output.split())
    assert "Traceback" not in ended.output


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("kv_tokens", "kv_token", "line 4: Object contains unknown field `kv_token`"),
        ("rate_per_s = 4.0", "rate_per_s = -4.0", "line 20: Expected `float` > 0.0"),
        ("[workload.synthetic]", "[workload.made]", "unknown field `made`"),
    ],
)
def test_wrong_scenario_ends_with_1_and_names_line_and_field(
    folder: Path, old: str, new: str, told: str
) -> None:
    """A wrong key, a negative rate, a section that is not known."""
    (folder / "bad.toml").write_text(SCENARIO.replace(old, new, 1))
    ended = run(folder / "bad.toml")
    assert ended.exit_code == 1
    assert told in " ".join(ended.output.split())
    assert f"`$.{'workload' if 'made' in new else ''}" in ended.output


def test_unknown_policy_ends_with_1_and_lists_those_that_are_known(folder: Path) -> None:
    """Before anything is simulated; a policy named twice too."""
    ended = run(folder / "made.toml", "--compare", "fifo")
    assert (ended.exit_code, "prefix_affine" in ended.output) == (1, True)
    twice = run(folder / "made.toml", "--compare", "prefix_affine")
    assert (twice.exit_code, "named twice" in twice.output) == (1, True)


def test_scenario_without_a_workload_says_what_to_give(folder: Path) -> None:
    """Nothing arrives."""
    ended = run(folder / "traced.toml")
    assert (ended.exit_code, "give --trace" in ended.output) == (1, True)


def test_missing_file_and_wrong_option_are_usage_errors(folder: Path) -> None:
    """Exit code 2."""
    assert run(folder / "none.toml").exit_code == 2
    assert run(folder / "made.toml", "--replicas", 0).exit_code == 2


SCENARIOS = sorted(path.name for path in EXAMPLES.glob("*.toml") if "[replica]" in path.read_text())
"""Other examples configure a gateway."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_examples_can_be_read(name: str) -> None:
    """Every scenario that is shipped lists its policies."""
    told = run(EXAMPLES / name, "--policies")
    assert (told.exit_code, "prefix_affine" in told.stdout) == (0, True), told.output


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (EXAMPLES / "policies").glob("*.toml"))
)
def test_example_policies_can_be_simulated(folder: Path, name: str) -> None:
    """Each goes over a scenario's routing."""
    found = read(run(folder / "made.toml", "--policy", EXAMPLES / "policies" / name, "--json"))
    assert found.policies == (Path(name).stem,)


ROLES = SCENARIO.replace("replicas = 2", "replicas = 3").replace(
    "[objective]\nttft_ms = 300",
    """[objective]
ttft_ms = 300
tpot_ms = 30
[roles]
prefill = 1
kv_bytes_per_token = 1000
link_bytes_per_s = 1e9
[roles.control]
[local_prefill]
mode = "remote"
[speculation]
depth = 2
[[speculation.acceptance]]
by_position = [0.6, 0.3]""",
)
ROLLOUT = (
    SCENARIO.replace("duration_s = 12", "duration_s = 60")
    + """[rollout]
policy = "round_robin"
start_s = 5
peak_cycle_s = 20
block_s = 4
edge_s = 0.5
look_s = 10
"""
)


def test_roles_hand_overs_and_drafts_are_shown_compared_and_written(folder: Path) -> None:
    """Table, page and JSON; policy files of other sections stand in for the scenario's."""
    (folder / "roles.toml").write_text(ROLES)
    (folder / "local.toml").write_text('[local_prefill]\nmode = "local"\n')
    (folder / "plain.toml").write_text(
        "[speculation]\ndepth = 0\n[[speculation.acceptance]]\nby_position = [0.0]\n"
    )
    files = [folder / f"{name}.toml" for name in ("local", "plain")]
    compared = [word for path in files for word in ("--compare", path)]
    told = run(folder / "roles.toml", *compared, "--seeds", 2, "--report", folder / "out")
    assert told.exit_code == 0, told.output
    for words in (
        "Hand-overs",
        "transfer p95",
        "Roles",
        "role changes",
        "Speculation",
        "drafts pay",
    ):
        assert words in told.stdout
    found = msgspec.json.decode((folder / "out" / "result.json").read_bytes(), type=Comparison)
    base, local, plain = (
        next(one for one in found.runs if one.policy == name)
        for name in ("prefix_affine", "local", "plain")
    )
    assert base.transfers is not None
    assert local.transfers is not None
    assert plain.speculation is not None
    assert base.transfers.moved > 0
    assert (local.transfers.moved, plain.speculation.drafted) == (0, 0.0)
    assert base.roles is not None
    assert set(base.roles.prefill) == {1}
    page = (folder / "out" / "index.html").read_text()
    for words in ("Roles over time", "Hand-overs", "Speculation", "decisions"):
        assert words in page


def test_rollout_is_shown_with_its_verdicts_and_leaves_a_ledger(folder: Path) -> None:
    """What is not asked in a simulation is said; the events are one file for each run."""
    (folder / "rollout.toml").write_text(ROLLOUT)
    told = run(folder / "rollout.toml", "--report", folder / "out")
    assert told.exit_code == 0, told.output
    words = " ".join(told.stdout.split())
    for said in (
        "Rollout of simulated_lever",
        "canary",
        "not asked in a simulation: memory, outputs",
    ):
        assert said in words
    assert "Rollout of simulated_lever" in (folder / "out" / "index.html").read_text()
    lines = (folder / "out" / "rollout-prefix_affine-1.jsonl").read_bytes().splitlines()
    state = rebuild(msgspec.json.decode(line, type=Envelope) for line in lines)
    ended = read(run(folder / "rollout.toml", "--json")).runs[0].rollout
    assert ended is not None
    assert state.levers["simulated_lever"].state is ended.state
    assert len(lines) == ended.events


def test_lever_record_of_a_file_is_what_is_proven(folder: Path) -> None:
    """Its name and ramp; one that leaves something unsaid ends the command with its path."""
    lever = record_of(
        RolloutSection(policy="round_robin", lever="from_a_file", block_s=5, edge_s=1)
    )
    (folder / "lever.json").write_bytes(msgspec.json.encode(lever))
    text = ROLLOUT + 'record = "lever.json"\n'
    (folder / "proven.toml").write_text(text)
    found = read(run(folder / "proven.toml", "--json")).runs[0].rollout
    assert found is not None
    assert found.lever == "from_a_file"
    (folder / "lever.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(lever, premise=""))
    )
    ended = run(folder / "proven.toml")
    assert ended.exit_code == 1
    assert "$.premise is empty" in " ".join(ended.output.split())


@pytest.mark.parametrize("name", ["roles", "speculation", "rollout"])
def test_example_can_be_simulated(folder: Path, name: str) -> None:
    """Each of the examples, cut short."""
    text = (EXAMPLES / f"{name}.toml").read_text()
    short = re.sub(r"(?m)^duration_s = .*$", "duration_s = 40", text)
    short = re.sub(r"(?m)^warm_s = .*$", "warm_s = 10", short)
    short = short.replace("[rollout]", "[rollout]\nstart_s = 5")
    (folder / "short.toml").write_text(short)
    assert read(run(folder / "short.toml", "--json")).runs[0].summary.finished > 0


def test_note_on_regimes_is_of_all_seeds_and_says_its_reason_once(folder: Path) -> None:
    """Shares are of the requests of all seeds together, policy by policy."""
    text = SCENARIO.replace('source = "made up"', 'source = "made up"\nregimes = ["queued"]')
    (folder / "said.toml").write_text(text)
    words = (folder / "said.toml", "--seeds", 3, "--compare", "round_robin")
    told, found = run(*words).stdout, read(run(*words, "--json"))
    assert told.count("never measured, so an extrapolation") == 1
    for policy in found.policies:
        mine = [one.regimes for one in found.runs if one.policy == policy]
        light = sum(one.requests for run in mine for one in run if one.regime == "light")
        share = light / sum(one.requests for run in mine for one in run)
        assert f"{policy}: light ({share:.1%} of the requests)" in told
