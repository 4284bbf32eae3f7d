"""What `trimtab up` makes of --attach, --discover and --policy."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from trimtab.core.config import AttachedServer, Config, ConfigError, FleetConfig, RoutingConfig
from trimtab.interfaces.cli import main
from trimtab.interfaces.up_cli import _with_policy, _with_servers

NAMED = Config(fleet=FleetConfig(attached=(AttachedServer(url="http://h:1", name="one"),)))


def test_servers_of_the_command_line_stand_beside_those_of_the_file() -> None:
    """With their names, where they have some; an address may hold an equals sign of its own."""
    found = _with_servers(NAMED, ("http://h:2/v1", "two=https://h:3/a=b"), "dns://fleet:8000")
    assert [(each.name, each.url) for each in found.fleet.attached] == [
        ("one", "http://h:1"),
        ("", "http://h:2/v1"),
        ("two", "https://h:3/a=b"),
    ]
    assert found.fleet.discover == "dns://fleet:8000"


def test_nothing_given_leaves_the_configuration_as_it_is() -> None:
    """No flag, no change."""
    assert _with_servers(Config(), (), None) == Config()


@pytest.mark.parametrize("text", ["h:8000", "ftp://h", "a b=http://h", "http://u@h", "http://"])
def test_what_is_no_address_is_refused_with_the_form(text: str) -> None:
    """The flag and what it wants; a password in an address is none of it."""
    with pytest.raises(ConfigError, match="it must be http://HOST:PORT or NAME=http://HOST:PORT"):
        _with_servers(Config(), (text,), None)


def test_place_to_discover_is_checked() -> None:
    """The two forms are named."""
    with pytest.raises(ConfigError, match="dns://HOST:PORT or file:PATH"):
        _with_servers(Config(), (), "consul://x")


def test_prompts_go_to_their_prefix_in_front_of_servers_of_others() -> None:
    """Unless the file or the flag names a policy; replicas that trimtab starts begin at the baseline."""
    chosen = RoutingConfig(policy="least_loaded")
    assert _with_policy(NAMED, None, is_named=False).routing.policy == "prefix_affine"
    assert _with_policy(NAMED, None, is_named=True).routing.policy == "round_robin"
    assert _with_policy(NAMED, "least_loaded", is_named=False).routing == chosen
    assert _with_policy(Config(), None, is_named=False).routing.policy == "round_robin"


def test_attaching_and_starting_exclude_each_other() -> None:
    """A gateway has either; the usage says so before anything happens."""
    ended = CliRunner().invoke(main, ["up", "--attach", "http://h:1", "--replicas", "2"])
    assert ended.exit_code == 2
    assert "--attach starts none" in ended.output


def test_tune_refuses_servers_of_others(tmp_path: Path) -> None:
    """It restarts its replicas; nothing is written."""
    path = tmp_path / "t.toml"
    path.write_text('[fleet]\ndiscover = "dns://h:1"\n')
    report = tmp_path / "out"
    ended = CliRunner().invoke(main, ["tune", "--report", str(report), "--config", str(path)])
    assert (ended.exit_code, report.exists()) == (1, False)
    assert "a tune restarts its replicas" in ended.output
