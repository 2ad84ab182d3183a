"""The results of a benchmark, as a table and as JSON rows."""

from typing import List, NamedTuple, Optional


class Row(NamedTuple):
    """One measurement. `ratio` is the value divided by the baseline that `against` names."""

    name: str
    value: float
    unit: str
    ratio: Optional[float]
    against: str


class Report(NamedTuple):
    """The printed text, the rows that are written as JSON lines, and the failures."""

    text: str
    rows: List[dict]
    failures: List[str]


def of_rows(rows, failures=()):
    """Returns the report of measurements."""
    return Report(table(rows), [row._asdict() for row in rows], list(failures))


def table(rows):
    """Formats the rows as a text table."""
    cells = [("name", "value", "unit", "ratio", "against")]
    for row in rows:
        value = f"{row.value:.1f}" if abs(row.value) >= 100 else f"{row.value:.2f}"
        cells.append((row.name, value, row.unit, "-" if row.ratio is None else f"{row.ratio:.2f}", row.against))
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    text = []
    for name, value, unit, ratio, against in cells:
        text.append(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {unit:<{widths[2]}}  {ratio:>{widths[3]}}  {against}")
    return "\n".join(text)
