"""The report's building blocks: tables, cards, figures with the table behind them, badges."""

import re
from collections.abc import Sequence
from html import escape

from trimtab.core.narrate_words import UNKNOWN

_NUMBER = re.compile(r"[-+]?[\d,.]+( ?(ms|s|%|x|points))?")


class Markup(str):
    """Text that is markup already and must not be escaped again."""

    __slots__ = ()


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls by itself where the screen is narrow; columns of numbers stand to the right."""
    if not rows:
        return '<p class="soft">None.</p>'
    columns = list(zip(*rows, strict=True))
    css = [' class="number"' if _are_numbers(column) else "" for column in columns]
    head = "".join(
        f'<th scope="col"{css[index]}>{escape(each)}</th>' for index, each in enumerate(headings)
    )
    body = "".join(
        f"<tr>{''.join(_cell(cell, css[index]) for index, cell in enumerate(row))}</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def card(body: str) -> str:
    """Return markup on a card."""
    return f'<div class="card">{body}</div>'


def figure(picture: str, caption: str, behind: str, *, css: str = "") -> str:
    """Return a picture with its caption and, folded, the table of its figures."""
    return (
        f'<figure><div class="{css}">{picture}</div><figcaption>{escape(caption)}</figcaption></figure>'
        f"<details><summary>Figures as a table</summary>{behind}</details>"
    )


def badge(words: str, css: str) -> Markup:
    """Return a verdict as a badge; its words say what its colour says."""
    return Markup(f'<span class="badge {css}">{escape(words)}</span>')


def _are_numbers(column: Sequence[str]) -> bool:
    said = [words for words in column if words]
    return bool(said) and all(_NUMBER.fullmatch(words) or words == UNKNOWN for words in said)


def _cell(words: str, css: str) -> str:
    text = words if isinstance(words, Markup) else escape(words)
    return f"<td{css}>{text}</td>"
