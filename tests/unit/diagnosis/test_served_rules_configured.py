"""What servers say of themselves joins what a person told, and never overrules it."""

from trimtab.core.served import EngineKind, Gauge, RankSample, ServerWindow
from trimtab.diagnosis.served_facts import CacheFacts, ServedFacts
from trimtab.diagnosis.served_rules_configured import facts_with


def window(
    configured: dict[str, str], *, engine: EngineKind = EngineKind.VLLM, limit: float | None = None
) -> ServerWindow:
    """A window that tells a configuration and a limit of requests."""
    gauges = {} if limit is None else {Gauge.REQUESTS_MAX: limit}
    return ServerWindow(
        source=str(sorted(configured.items())),
        engine=engine,
        version=None,
        model=None,
        lifetime=False,
        start_s=0.0,
        end_s=10.0,
        length_s=10.0,
        scrapes=2,
        ranks=(RankSample(rank="", gauges=gauges),),
        configured=configured,
    )


def test_configuration_of_servers_becomes_effective() -> None:
    """Caching, slots and the engine are taken from the servers, whatever else they say too."""
    found = facts_with(
        ServedFacts(), [window({"enable_prefix_caching": "False", "block_size": "16"}, limit=64)]
    )
    assert found.effective == {
        "enable_prefix_caching": "False", "block_size": "16", "engine": "vllm",
    }  # fmt: skip
    assert (found.slots, found.cache.enabled) == (64, False)


def test_what_a_person_told_is_kept() -> None:
    """A person's word stands where a server says something else."""
    told = ServedFacts(slots=8, effective={"block_size": "32"}, cache=CacheFacts(enabled=True))
    found = facts_with(
        told, [window({"enable_prefix_caching": "False", "block_size": "16"}, limit=64)]
    )
    assert (found.slots, found.cache.enabled, found.effective["block_size"]) == (8, True, "32")


def test_servers_that_differ_agree_on_nothing() -> None:
    """Only what all engines say is effective; exporters of devices have no say."""
    one, other = window({"block_size": "16"}, limit=8), window({"block_size": "32"}, limit=16)
    device = window({}, engine=EngineKind.DCGM)
    found = facts_with(ServedFacts(), [one, other, device])
    assert (found.effective, found.slots, found.cache.enabled) == ({"engine": "vllm"}, None, None)
    assert facts_with(ServedFacts(), []) == ServedFacts()
