"""Scenarios: what is wrong is named with its line and field."""

import pytest

from trimtab.sim.scenario import (
    ScenarioError,
    parse_routing,
    parse_scenario,
    parse_variant,
    varied,
)
from trimtab.sim.specs import roles_spec

GOOD = """name = "x"
warm_s = 1
[replica]
kv_tokens = 4096
[replica.cost]
overhead_ms = 1.0
weights_ms = 5.0
token_ms = 0.1
[fleet]
replicas = 2
[workload]
duration_s = 10
[workload.synthetic]
rate_per_s = 1.0
"""


def test_scenario_that_says_all_it_must_is_read() -> None:
    """Everything else has a default."""
    scenario = parse_scenario(GOOD, source="x.toml")
    assert (scenario.fleet.replicas, scenario.routing.policy) == (2, "prefix_affine")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "x"', 'nmae = "x"', "x.toml, line 1: Object contains unknown field `nmae`"),
        (
            "replicas = 2",
            "replicas = -2",
            "x.toml, line 10: Expected `int` >= 1 - at `$.fleet.replicas`",
        ),
        ("rate_per_s = 1.0", "rate_per_s = -1.0", "x.toml, line 14: Expected `float` > 0.0 - at"),
        ("kv_tokens = 4096", "kv_tokens = 4", "x.toml, line 4: holds no block of block_tokens"),
        ("warm_s = 1", "warm_s = 10", "x.toml, line 2: must be below the 10 s"),
        ("overhead_ms = 1.0", "overhead_ms = -1.0", "x.toml, line 6: Expected `float` >= 0.0"),
        ("[fleet]", "[fleets]", "x.toml, line 9: Object contains unknown field `fleets`"),
        (
            "duration_s = 10",
            'duration_s = 10\ntrace = "a"',
            "x.toml, line 13: give a trace or synthetic",
        ),
    ],
)
def test_error_names_line_and_field(old: str, new: str, told: str) -> None:
    """A wrong key, a value out of range, a combination that cannot be."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD.replace(old, new), source="x.toml")
    assert told in str(caught.value)


SYNTHETIC = "[workload.synthetic]\nrate_per_s = 1.0\n"
FAULT = '[[faults]]\nat_s = 1\nkind = "kill"\n'


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "token_ms = 0.1",
            "token_ms = inf",
            "line 8: must be a finite number, got inf - at `$.rep",
        ),
        ("duration_s = 10", "duration_s = inf", "line 12: must be a finite number, got inf"),
        ("rate_per_s = 1.0", "rate_per_s = inf", "line 14: must be a finite number, got inf"),
        ("replicas = 2", "replicas = 2\nhop_ms = inf", "`$.fleet.hop_ms`"),
        (SYNTHETIC, SYNTHETIC + "think_s = inf\n", "`$.workload.synthetic.think_s`"),
        ("warm_s = 1", "warm_s = inf", "line 2: must be a finite number, got inf - at `$.warm_s`"),
        (SYNTHETIC, SYNTHETIC + FAULT.replace("at_s = 1", "at_s = inf"), "`$.faults[0].at_s`"),
        ("replicas = 2", "replicas = 2\nprobe_s = 1e-9", "10,000,000,000 probes in 10 s"),
        ("rate_per_s = 1.0", "rate_per_s = 1e9", "line 14: asks for 10,000,000,000 requests"),
        ("replicas = 2", "replicas = 2\nfailures_per_hour = 1e12", "crashes in 10 s"),
        (
            "duration_s = 10",
            "duration_s = 10\ndiurnal_low = 0.5\ndiurnal_period_s = 1e-9",
            "line 14: asks for 10,000,000,000 steps of the day's shape",
        ),
    ],
)
def test_number_without_end_is_refused_before_anything_is_simulated(
    old: str, new: str, told: str
) -> None:
    """Infinite ones wherever they are, and those that ask for more events than anyone waits for."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD.replace(old, new), source="x.toml")
    assert str(caught.value).startswith("x.toml, line ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (FAULT.replace("at_s = 1", "at_s = 10"), "line 16: is after the end: 10 s are simulated"),
        (FAULT + "factor = 7\n", "line 18: is for slow and slow_link; a kill has none"),
        (FAULT + "for_s = 3\n", "line 18: is for slow and slow_link; a kill has none"),
        (FAULT + "start_s = 3\n", "line 18: is for add; a kill has none"),
        (FAULT.replace("kill", "slow"), "line 15: slow needs a factor other than 1"),
        (FAULT.replace("kill", "add") + "replica = 1\n", "line 18: an added replica gets the next"),
    ],
)
def test_fault_that_would_do_nothing_as_written_is_refused(fault: str, told: str) -> None:
    """One after the end, and keys that its kind does not have or needs."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD + fault, source="x.toml")
    assert told in str(caught.value)
    assert "`$.faults[0]." in str(caught.value)


def test_copies_of_synthetic_sessions_are_refused_with_what_to_raise_instead() -> None:
    """They would be ignored without a word."""
    text = GOOD.replace("duration_s = 10", "duration_s = 10\ncopies = 5")
    with pytest.raises(ScenarioError, match=r"line 13: .*raise workload\.synthetic\.rate_per_s"):
        parse_scenario(text, source="x.toml")


def test_edges_that_leave_nothing_to_count_are_refused() -> None:
    """What is cut at both ends must be less than what is simulated."""
    text = GOOD.replace("warm_s = 1", "warm_s = 1\ncool_s = 9")
    with pytest.raises(ScenarioError, match=r"line 3: leaves nothing to count of 10 s"):
        parse_scenario(text, source="x.toml")


def test_fault_of_a_replica_that_is_not_there_is_refused() -> None:
    """Replicas are numbered from 0."""
    text = GOOD + '[[faults]]\nat_s = 1\nkind = "kill"\nreplica = 2\n'
    with pytest.raises(ScenarioError, match=r"line 18: there are 2 replicas"):
        parse_scenario(text, source="x.toml")


def test_text_that_is_no_toml_is_refused_with_its_place() -> None:
    """The parser's own message has the line."""
    with pytest.raises(ScenarioError, match="line 1"):
        parse_scenario("name = = 1", source="x.toml")


ROLES = """[roles]
prefill = 1
kv_bytes_per_token = 131072
link_bytes_per_s = 1e9
[roles.control]
act_above = 0.55
[objective]
ttft_ms = 500
tpot_ms = 40
[[speculation.acceptance]]
by_position = [0.5, 0.4]
[[speculation.acceptance]]
label = "edit"
by_position = [0.9, 0.8]
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("prefill = 1", "prefill = 2", "x.toml, line 16: leaves no replica to decode"),
        ("prefill = 1", "prefil = 1", "x.toml, line 16: Object contains unknown field `prefil`"),
        (
            "link_bytes_per_s = 1e9",
            "link_bytes_per_s = -1",
            "x.toml, line 18: Expected `float` > 0.0",
        ),
        ("kv_bytes_per_token = 131072\n", "", "x.toml, line 15: Object missing required field"),
        ("act_above = 0.55", "act_above = 0.3", "x.toml, line 19: must be below act_above"),
        ("tpot_ms = 40", "", "x.toml, line 19: role control needs both targets"),
        ("[0.5, 0.4]", "[0.4, 0.5]", "x.toml, line 25: must not rise"),
        ("[0.9, 0.8]", "[1.9, 0.8]", "x.toml, line 28: Expected `float` <= 1.0"),
        (
            'label = "edit"',
            'lable = "edit"',
            "x.toml, line 27: Object contains unknown field `lable`",
        ),
        ('label = "edit"', 'label = ""', "x.toml, line 27: label '' is told twice"),
        ("by_position = [0.9, 0.8]", "", "x.toml, line 26: Object missing required field"),
    ],
)
def test_error_in_roles_or_speculation_names_line_and_field(old: str, new: str, told: str) -> None:
    """Of lists the right entry."""
    parse_scenario(GOOD + ROLES, source="x.toml")
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD + ROLES.replace(old, new), source="x.toml")
    assert told in str(caught.value)


def test_prefill_side_is_predicted_with_the_budget_that_it_runs() -> None:
    """As live replicas are: a step of theirs is as large as configured, and a step of the others what it is."""
    text = GOOD + ROLES.replace("prefill = 1", "prefill = 1\nprefill_budget_tokens = 512")
    spec = roles_spec(parse_scenario(text, source="x.toml"))
    alike = roles_spec(parse_scenario(GOOD + ROLES, source="x.toml"))
    assert spec is not None
    assert alike is not None
    assert (spec.rules.stall_chunk, spec.rules.prefill_chunk) == (2048, 512)
    assert (alike.rules.stall_chunk, alike.rules.prefill_chunk) == (2048, 2048)


def test_roles_need_paged_replicas_and_slow_links_need_roles() -> None:
    """What slots hold cannot be handed over by blocks."""
    slots = GOOD.replace("kv_tokens = 4096", 'kv_tokens = 4096\nengine = "slots"')
    with pytest.raises(ScenarioError, match="line 17: replicas with slots hand no KV over"):
        parse_scenario(slots + ROLES, source="x.toml")
    fault = '[[faults]]\nat_s = 1\nkind = "kill"\n[[faults]]\nat_s = 2\nkind = "slow_link"\n'
    with pytest.raises(ScenarioError, match=r"line 20: without \[roles\] no KV is on any link"):
        parse_scenario(GOOD + fault, source="x.toml")


def test_policy_file_stands_in_for_sections_and_says_something() -> None:
    """Sections that it does not have stay; what does not go together is refused."""
    scenario = parse_scenario(GOOD + ROLES, source="x.toml")
    variant = parse_variant('[local_prefill]\nmode = "remote"\n', source="p.toml")
    made = varied(scenario, variant, source="p.toml")
    assert (made.local_prefill.mode, made.roles) == ("remote", scenario.roles)
    wrong = parse_variant(
        ROLES.partition("[objective]")[0].replace("= 1\n", "= 2\n"), source="p.toml"
    )
    with pytest.raises(ScenarioError, match=r"p\.toml: leaves no replica to decode"):
        varied(scenario, wrong, source="p.toml")
    with pytest.raises(ScenarioError, match="says nothing"):
        parse_variant("", source="p.toml")


def test_policy_file_says_where_requests_go_and_nothing_else() -> None:
    """A [routing] section, where only that is asked for."""
    assert parse_routing("[routing]\nload_bound = 1.5\n", source="p.toml").load_bound == 1.5
    with pytest.raises(ScenarioError, match=r"p\.toml, line 2"):
        parse_routing("[routing]\nload_bond = 1.5\n", source="p.toml")
