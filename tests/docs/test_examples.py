"""Examples are complete: lever records, and configurations that no other test starts."""

from pathlib import Path

from events_kit import REVISION

from trimtab.core.config import parse_config
from trimtab.core.lever import check_record
from trimtab.core.types import Role
from trimtab.rollout.short_record import complete, parse_record

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "levers" / "smaller-chunk.toml"


def test_example_of_a_lever_record_is_complete() -> None:
    """As a person would copy it: nothing is refused."""
    short = parse_record(EXAMPLE.read_text(encoding="utf-8"), source=EXAMPLE.name)
    record = complete(short, baseline=REVISION, now_s=0.0)
    assert check_record(record).name == "smaller-chunk"


def test_example_of_a_pair_of_servers_is_a_configuration() -> None:
    """One server prefills for the other, and both are told to be near."""
    path = EXAMPLE.parents[1] / "vllm-pair.toml"
    config = parse_config(path.read_text(encoding="utf-8"), source=path.name)
    servers = config.fleet.attached
    assert [server.role for server in servers] == [Role.PREFILL, Role.DECODE]
    assert {server.labels.host for server in servers} == {"here"}
