"""Rules for weights that are to stay as they are: a module's whole name, or `re:` and a pattern from its begin on.

A rule that matches nothing protects nothing: `lm_head` does not name `language_model.lm_head`. Whoever takes rules
checks them against the names that there are.
"""

import re
from collections.abc import Callable, Sequence

from trimtab.core.nearest import nearest_names

_PATTERN = "re:"


def is_pattern(rule: str) -> bool:
    """Say whether a rule is a pattern, and no whole name."""
    return rule.startswith(_PATTERN)


def rule_matches(rule: str, module: str) -> bool:
    """Say whether a rule names a module: exactly, or by a pattern after `re:` from its begin on."""
    if is_pattern(rule):
        return re.match(rule.removeprefix(_PATTERN), module) is not None
    return rule == module


def nothing_kept(
    rule: str,
    modules: Sequence[str],
    *,
    also: Sequence[str] = (),
    called: str = "ignore rule",
    more: Callable[[Sequence[str]], str] = lambda near: "",
) -> str | None:
    """Return what is wrong with a rule, with the nearest names, where it is no pattern or matches no module.

    `also`: other names of modules that a rule may match; `called`: what the reader knows such a rule as; `more`:
    what is to be said of the nearest names.
    """
    try:
        found = any(rule_matches(rule, module) for module in (*modules, *also))
    except re.error as error:
        return f"the {called} {rule!r} is no pattern: {error}"
    if found:
        return None
    near = nearest_names(rule.removeprefix(_PATTERN), modules) or tuple(modules[-1:])
    return (
        f"the {called} {rule!r} matched nothing; nearest: {', '.join(near) or 'none'}{more(near)}"
    )
