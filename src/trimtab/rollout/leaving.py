"""Which cuts a lever may be without: one in which harm was shown, or all but the one that a person names."""

import msgspec

from trimtab.core.cuts import KNOWN_BEFORE_SERVING, Cut, Dimension, header_names
from trimtab.core.lever import CutHarm, LeverRecord, LeverRecordError, check_record
from trimtab.rollout.answer import ALL_TRAFFIC


def leaving(record: LeverRecord, cut: str) -> Cut | None:
    """Return the cut that leaves, None where harm in it stops the lever.

    Only a lever whose record says so loses cuts, only those that requests can be told by before they are served, and
    not the last cut of its slice that was not taken off it.
    """
    if record.harm_in_cut is not CutHarm.STOP_CUT or cut == ALL_TRAFFIC:
        return None
    dimension, _, value = cut.partition("=")
    found = Cut(Dimension(dimension), value)
    is_last = set(record.cuts) - set(record.without) == {found}
    return None if found.dimension not in KNOWN_BEFORE_SERVING or is_last else found


def narrowed(record: LeverRecord, cut: Cut) -> LeverRecord:
    """Return the record with its slice drawn from one cut alone, without the gates of cuts that lie outside it.

    Raises `LeverRecordError` for a cut that its slice does not hold, or that no request is told by before it is served,
    or where no gate is left that asks for a gain.
    """
    if cut.dimension not in KNOWN_BEFORE_SERVING:
        raise LeverRecordError(
            f"{cut} is known only when a request has been served: no slice is drawn by it"
        )
    if (record.cuts and cut not in record.cuts) or cut in record.without:
        drawn = " or ".join(str(each) for each in record.cuts) or "all traffic"
        but = "".join(f" but {each}" for each in record.without)
        raise LeverRecordError(f"{record.name} is for {drawn}{but}: {cut} is not among that")
    # A gate that no request reaches would hold the rollout until it is taken back.
    gates = tuple(gate for gate in record.gates if not _lies_outside(gate.cut, cut))
    return check_record(msgspec.structs.replace(record, cuts=(cut,), gates=gates))


def divided_by(cut: Cut) -> tuple[Dimension, frozenset[str]]:
    """Return what a cut divides the traffic by: of two cuts by one dimension, or by one header, a request is in one."""
    return cut.dimension, header_names((cut,))


def _lies_outside(other: Cut | None, cut: Cut) -> bool:
    """Whether no request belongs to both cuts."""
    return other is not None and other != cut and divided_by(other) == divided_by(cut)
