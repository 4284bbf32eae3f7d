"""All judgements that facts raise, in one order."""

from trimtab.core.evidence import Readings
from trimtab.diagnosis.served_advice import Judgement
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_rules_balance import balance_judgements
from trimtab.diagnosis.served_rules_cache import cache_judgements
from trimtab.diagnosis.served_rules_compare import compare_judgements
from trimtab.diagnosis.served_rules_layout import layout_judgements
from trimtab.diagnosis.served_rules_speculation import speculation_judgements
from trimtab.diagnosis.served_rules_transfer import transfer_judgements


def judgements_of(readings: Readings, facts: ServedFacts) -> tuple[Judgement, ...]:
    """Return every judgement; a subject that no fact raises is not among them."""
    return (
        *cache_judgements(readings, facts),
        *balance_judgements(readings, facts),
        *speculation_judgements(readings, facts),
        *compare_judgements(readings, facts),
        *layout_judgements(readings, facts),
        *transfer_judgements(readings, facts),
    )
