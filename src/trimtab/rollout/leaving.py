"""Which cut may leave a lever because harm was shown in it, instead of the lever being stopped."""

from trimtab.core.cuts import KNOWN_BEFORE_SERVING, Cut, Dimension
from trimtab.core.lever import CutHarm, LeverRecord
from trimtab.rollout.answer import ALL_TRAFFIC


def leaving(record: LeverRecord, cut: str) -> Cut | None:
    """Return the cut that leaves, None where harm in it stops the lever.

    Only a lever whose record says so loses cuts, only those that requests can be told by before they are served, and
    not the one cut that its slice consists of.
    """
    if record.harm_in_cut is not CutHarm.STOP_CUT or cut == ALL_TRAFFIC:
        return None
    dimension, _, value = cut.partition("=")
    found = Cut(Dimension(dimension), value)
    if found.dimension not in KNOWN_BEFORE_SERVING or record.cuts == (found,):
        return None
    return found
