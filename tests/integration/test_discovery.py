"""Who is to be in an attached fleet: named, found by DNS, or listed in a watched file."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import until

from trimtab.core.config import AttachedServer, ConfigError, FleetConfig
from trimtab.core.ports import LaunchError
from trimtab.runtime.discovery import Discovery

ONE = '[[attached]]\nurl = "http://127.0.0.1:1"\n'
TWO = '[[attached]]\nurl = "http://127.0.0.1:2"\nname = "two"\n'


class Fleet:
    """Takes what it is told to want, or refuses it."""

    def __init__(self) -> None:
        self.wanted: list[list[str]] = []
        self.said: list[str] = []
        self.refuses = ""

    def want(self, servers: Sequence[AttachedServer]) -> None:
        if self.refuses:
            raise LaunchError(self.refuses)
        self.wanted.append([server.url for server in servers])


@asynccontextmanager
async def following(config: FleetConfig, fleet: Fleet) -> AsyncIterator[Discovery]:
    """Follow a configuration; the first servers count as wanted."""
    discovery = Discovery(config, fleet.want, fleet.said.append)
    fleet.want(await discovery.first())
    task = asyncio.create_task(discovery.run())
    try:
        yield discovery
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def watching(path: Path, *named: str) -> FleetConfig:
    return FleetConfig(
        attached=tuple(AttachedServer(url=url) for url in named),
        discover=f"file:{path}",
        discover_every_s=0.1,
    )


async def test_watched_file_adds_and_removes_servers(tmp_path: Path) -> None:
    """What the file names is wanted, beside the servers of the configuration."""
    path, fleet = tmp_path / "fleet.toml", Fleet()
    path.write_text(ONE)
    async with following(watching(path, "http://127.0.0.1:9"), fleet):
        assert fleet.wanted == [["http://127.0.0.1:9", "http://127.0.0.1:1"]]
        path.write_text(ONE + TWO)
        await until(lambda: len(fleet.wanted) == 2)
        path.write_text(TWO)
        await until(lambda: len(fleet.wanted) == 3)
    assert fleet.wanted[1:] == [
        ["http://127.0.0.1:9", "http://127.0.0.1:1", "http://127.0.0.1:2"],
        ["http://127.0.0.1:9", "http://127.0.0.1:2"],
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[attached]\n", "is not valid TOML"),
        ('[[attached]]\nurl = "ftp://h"\n', "at `$.attached[0].url`"),
        ('[[attached]]\nurl = "http://h"\nnam = "x"\n', "unknown field `nam`"),
        (None, "cannot be read: No such file"),
    ],
)
async def test_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path, content: str | None, said: str
) -> None:
    """The servers stay as they were; why is said once, however often it is looked at."""
    path, fleet = tmp_path / "fleet.toml", Fleet()
    path.write_text(ONE)
    async with following(watching(path), fleet):
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
        await until(lambda: bool(fleet.said))
        await asyncio.sleep(0.25)
        assert len(fleet.said) == 1
        assert said in fleet.said[0]
        assert fleet.said[0].endswith("; the servers stay as they were")
        path.write_text(TWO)
        await until(lambda: len(fleet.wanted) == 2)
    assert fleet.wanted == [["http://127.0.0.1:1"], ["http://127.0.0.1:2"]]


async def test_list_that_the_fleet_refuses_is_tried_again(tmp_path: Path) -> None:
    """A key that is missing now may be there at the next look."""
    path, fleet = tmp_path / "fleet.toml", Fleet()
    path.write_text(ONE)
    async with following(watching(path), fleet):
        fleet.refuses = "env:K is not set"
        path.write_text(TWO)
        await until(lambda: bool(fleet.said))
        fleet.refuses = ""
        await until(lambda: len(fleet.wanted) == 2)
    assert fleet.wanted[-1] == ["http://127.0.0.1:2"]


async def test_dns_gives_one_server_for_each_address() -> None:
    """Addresses are in order, so that several gateways agree."""
    fleet = Fleet()
    async with following(FleetConfig(discover="dns://localhost:8123"), fleet):
        pass
    [urls] = fleet.wanted
    assert "http://127.0.0.1:8123" in urls
    assert urls == sorted(urls)


async def test_name_that_does_not_resolve_ends_a_start_without_servers() -> None:
    """With the key of the configuration; with servers named beside it, it is said and looked at again."""
    nowhere = "dns://no-such-host.invalid:1"
    with pytest.raises(
        ConfigError, match=r"fleet\.discover: dns://no-such-host\.invalid:1 does not"
    ):
        await Discovery(FleetConfig(discover=nowhere), Fleet().want, lambda _: None).first()
    fleet = Fleet()
    config = FleetConfig(discover=nowhere, attached=(AttachedServer(url="http://127.0.0.1:9"),))
    async with following(config, fleet):
        assert fleet.wanted == [["http://127.0.0.1:9"]]
        assert "does not resolve" in fleet.said[0]


async def test_another_configuration_is_followed_at_once(tmp_path: Path) -> None:
    """What the old place named stays until the new one has answered: nobody is without servers meanwhile."""
    first, second, fleet = tmp_path / "a.toml", tmp_path / "b.toml", Fleet()
    first.write_text(ONE)
    second.write_text(TWO)
    async with following(watching(first), fleet) as discovery:
        discovery.use_config(watching(second))
        assert fleet.wanted[-1] == ["http://127.0.0.1:1"]
        await until(lambda: fleet.wanted[-1] == ["http://127.0.0.1:2"])


async def test_configuration_that_the_fleet_refuses_is_not_followed(tmp_path: Path) -> None:
    """The old one goes on."""
    path, fleet = tmp_path / "a.toml", Fleet()
    path.write_text(ONE)
    async with following(watching(path), fleet) as discovery:
        fleet.refuses = "no"
        with pytest.raises(LaunchError, match="no"):
            discovery.use_config(watching(path, "http://127.0.0.1:7"))
        fleet.refuses = ""
        path.write_text(ONE + TWO)
        await until(lambda: fleet.wanted[-1] == ["http://127.0.0.1:1", "http://127.0.0.1:2"])
