"""The lint of prompts in words for a terminal."""

import textwrap

import click

from trimtab.workloads.prompt_lint import LintFinding, PromptLint

WIDTH = 100


def print_lint(result: PromptLint, *, at_least: bool) -> None:
    """Print a lint. `at_least`: times are the hardware's floor and no measurement."""
    click.echo(_head(result))
    for line in _reuse(result, at_least=at_least):
        click.echo(line)
    for number, finding in enumerate(result.findings, start=1):
        click.echo()
        _print_finding(number, finding)
    if not result.findings and result.compared:
        looked_at = "what was compared of the prompts" if result.left_out else "the prompts"
        click.echo(f"Nothing in {looked_at} keeps a cache from reusing what is the same.")
    for heading, lines in (
        ("Layout, stable parts first", result.layout),
        ("What will not help", result.not_helping),
        ("Warnings", result.warnings),
        ("Unknown", result.unknown),
    ):
        _print_list(heading, lines)


def _head(result: PromptLint) -> str:
    counted = "" if result.exact else "about "
    return (
        f"{_many(result.requests, 'request')} in {_many(result.sessions, 'session')}, "
        f"{counted}{result.tokens:,.0f} "
        f"tokens; {result.compared} compared with an earlier one"
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _reuse(result: PromptLint, *, at_least: bool) -> list[str]:
    if result.share_now is None or result.reusable_now is None:
        return []
    lines = [
        f"Reuse ceiling now: {result.share_now:.2%} ({result.reusable_now:,.0f} tokens a request)"
    ]
    if result.share_after is not None and result.reusable_after is not None:
        lines.append(
            f"Reuse ceiling after the fix: {result.share_after:.2%} "
            f"({result.reusable_after:,.0f} tokens a request)"
        )
    if result.prefill_ms_now is not None and result.prefill_ms_after is not None:
        saved = result.prefill_ms_now - result.prefill_ms_after
        how = "at least, at the ceiling of the hardware" if at_least else "at the given rate"
        lines.append(
            f"Expected TTFT without queueing: {result.prefill_ms_now:,.0f} ms now, "
            f"{result.prefill_ms_after:,.0f} ms after: {saved:,.0f} ms saved a request ({how})"
        )
    return lines


def _print_finding(number: int, finding: LintFinding) -> None:
    place = f"byte {finding.byte:,}" + (f", line {finding.text_line}" if finding.text_line else "")
    gain = (
        "gain unknown"
        if finding.gain_tokens is None and not finding.lost_tokens
        else f"{finding.lost_tokens:,.0f} tokens moved out of reach"
        if finding.gain_tokens is None
        else f"{finding.gain_tokens:,.0f} tokens over all requests"
    )
    click.echo(f"{number}. {finding.text}")
    body = (
        f"{_many(finding.requests, 'request')}; first seen in lines {finding.before_line} and {finding.line} "
        f"of the file, at {place} of that part; {gain}"
    )
    for text in (body, f"remedy: {finding.remedy}"):
        click.echo(textwrap.fill(text, WIDTH, initial_indent="   ", subsequent_indent="   "))


def _print_list(heading: str, lines: tuple[str, ...]) -> None:
    if not lines:
        return
    click.echo(f"\n{heading}:")
    for line in lines:
        click.echo(textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    "))
