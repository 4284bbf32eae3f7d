"""What an estimate leaves out of a layout under a demand, in words: its times are then no surer than a formula's.

drafts      a step verifies them in the tables' time; the drafter's own time and memory are not counted
link        of ranks or stages, at a rate that is not known: no more than the tables' own messages is counted
"""

from collections.abc import Iterator

import msgspec

from trimtab.core.layout import Cluster, Demand, EstimateSource, Expected, Layout, Link


def draft_doubts(demand: Demand) -> Iterator[str]:
    """Give what is left out of a demand's drafts."""
    if demand.draft_tokens:
        yield (
            "drafts: the time and memory of what makes them are not counted, and their acceptance is as told: "
            "tokens may take longer than this"
        )


def link_doubts(layout: Layout, cluster: Cluster | None, link: Link | None) -> Iterator[str]:
    """Give what is left out of a layout's messages; `link`: that of a stage's ranks, None for a single one."""
    if link is not None and not link.bytes_per_s:
        yield f"ranks: the rate of their link ({link.name}) is not known: talking may take longer than counted"
    if cluster is None or layout.pp < 2 or layout.devices_per_replica <= cluster.devices:
        return
    if cluster.node_link is None or not cluster.node_link.bytes_per_s:
        yield (
            "stages on different nodes: what joins these is not known, and handing over between stages is not counted: "
            "it may take longer than this"
        )


def doubted(expected: Expected, doubts: tuple[str, ...]) -> Expected:
    """Return an expectation that says its doubts; one of kernel tables is then one of tables and a formula."""
    if not doubts:
        return expected
    source = expected.source
    if source is EstimateSource.KERNEL_TABLES:
        source = EstimateSource.EXTENDED_TABLES
    return msgspec.structs.replace(expected, source=source, notes=(*expected.notes, *doubts))
