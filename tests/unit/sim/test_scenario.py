"""Scenarios: what is wrong is named with its line and field."""

import pytest

from trimtab.sim.scenario import ScenarioError, parse_routing, parse_scenario

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


def test_fault_of_a_replica_that_is_not_there_is_refused() -> None:
    """Replicas are numbered from 0."""
    text = GOOD + '[[faults]]\nat_s = 1\nkind = "kill"\nreplica = 2\n'
    with pytest.raises(ScenarioError, match=r"line 18: there are 2 replicas"):
        parse_scenario(text, source="x.toml")


def test_text_that_is_no_toml_is_refused_with_its_place() -> None:
    """The parser's own message has the line."""
    with pytest.raises(ScenarioError, match="line 1"):
        parse_scenario("name = = 1", source="x.toml")


def test_policy_file_says_where_requests_go_and_nothing_else() -> None:
    """A [routing] section alone."""
    assert parse_routing("[routing]\nload_bound = 1.5\n", source="p.toml").load_bound == 1.5
    with pytest.raises(ScenarioError, match=r"p\.toml, line 2"):
        parse_routing("[routing]\nload_bond = 1.5\n", source="p.toml")
