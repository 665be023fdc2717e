"""The report for a person: a table, worst first; each line says why and what to do about it."""

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agents.doctor.diagnose import Report
from agents.doctor.finding import Finding, Status, count

_STYLES: Final = {
    Status.FAIL: "bold red",
    Status.WARN: "yellow",
    Status.UNKNOWN: "cyan",
    Status.PASS: "green",
}
_ORDER: Final = (Status.FAIL, Status.WARN, Status.UNKNOWN, Status.PASS)


def render(report: Report, console: Console) -> None:
    """Print the report; failures come first, and a finding of several cards is one row."""
    short = {card.device: card.address.removeprefix("0000:") for card in report.cards}
    for card in report.cards:
        also = "" if card.device == card.address else f"  {card.device}"
        console.print(Text(f"{short[card.device]}  {card.model}{also}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for status in _ORDER:
        for finding, devices in _grouped(report.findings, status):
            table.add_row(
                Text(str(status), style=_STYLES[status]),
                finding.name,
                _words(finding, [short.get(d, d) for d in devices], len(report.cards)),
            )
    if report.cards:
        console.print()
    _print(table, console)
    console.print()
    totals = count(report.findings)
    console.print(Text(", ".join(f"{totals[str(s)]} {s}" for s in _ORDER)), soft_wrap=True)
    if report.not_applicable:
        names = ", ".join(report.not_applicable)
        _print(Text(f"no such card, not looked at: {names}", style="dim"), console)


def _print(thing: Table | Text, console: Console) -> None:
    """Without the blanks that fill a line, where it goes to a file or a pipe."""
    if console.is_terminal:
        console.print(thing)
        return
    with console.capture() as captured:
        console.print(thing)
    for line in captured.get().splitlines():
        console.print(Text(line.rstrip()), soft_wrap=True)


def _grouped(findings: list[Finding], status: Status) -> list[tuple[Finding, list[str]]]:
    """Findings that differ in nothing but the card, with the cards."""
    groups: dict[tuple[str, ...], tuple[Finding, list[str]]] = {}
    for finding in findings:
        if finding.status is status:
            key = (finding.name, finding.found, finding.wanted, finding.reason, finding.fix)
            group = groups.setdefault(key, (finding, []))
            if finding.device is not None:
                group[1].append(finding.device)
    return list(groups.values())


def _words(finding: Finding, devices: list[str], cards: int) -> Text:
    text = Text()
    if devices and cards > 1:
        text.append(f"{', '.join(devices)}: " if len(devices) < cards else "all cards: ")
    text.append(finding.found, style="" if finding.status is Status.PASS else "bold")
    if finding.wanted and finding.status is not Status.PASS:
        text.append(f"; wanted: {finding.wanted}")
    if finding.reason:
        text.append(f"\n{finding.reason}")
    if finding.fix:
        text.append(f"\n→ {finding.fix}")
    return text
