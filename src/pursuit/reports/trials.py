"""The trials of a mission as CSV, as Parquet and as a pandas table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pursuit.core.report import Trial
from pursuit.errors import ExtraMissing

Trials = Sequence[Trial]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

HEAD = ("trial", "iteration", "tool", "outcome", "best", "seconds", "started_at")
TAIL = ("error", "call_id")


def table_of(trials: Trials) -> tuple[list[str], list[list[Any]]]:
    """The columns and rows of a flat table: each argument and each metric has its own column.

    A metric with the name of another column is `metric.NAME`, an argument `arg.NAME`; what is no number, text or flag
    stays a list or a table. Iterations count from 1, as everywhere that people read them.
    """
    args = list(dict.fromkeys(name for row in trials for name in row.args))
    metrics = list(dict.fromkeys(name for row in trials for name in row.metrics))
    taken = {*HEAD, *TAIL}
    arg_names = [f"arg.{name}" if name in taken or name in metrics else name for name in args]
    metric_names = [f"metric.{name}" if name in taken or name in args else name for name in metrics]
    rows = [
        [
            *(row.iteration + 1 if name == "iteration" else getattr(row, name) for name in HEAD),
            *(row.args.get(name) for name in args),
            *(row.metrics.get(name) for name in metrics),
            *(getattr(row, name) for name in TAIL),
        ]
        for row in trials
    ]
    return [*HEAD, *arg_names, *metric_names, *TAIL], rows


def as_csv(trials: Trials) -> str:
    """One line for each trial; lists and tables are JSON."""
    columns, rows = table_of(trials)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return file.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"  # a spreadsheet would run it as a formula
    return value


def as_parquet(trials: Trials) -> bytes:
    """The table as a Parquet file; a column of mixed types is text. Raises `ExtraMissing` without pyarrow."""
    if find_spec("pyarrow") is None:
        raise ExtraMissing("Parquet needs pyarrow: pip install 'pursuit[tables]', or write .csv", extra="tables")
    arrow: Any = import_module("pyarrow")
    columns, rows = table_of(trials)
    values = list(zip(*rows, strict=True)) or [() for _ in columns]
    arrays = {name: arrow.array(_uniform(column)) for name, column in zip(columns, values, strict=True)}
    sink: Any = arrow.BufferOutputStream()
    import_module("pyarrow.parquet").write_table(arrow.table(arrays), sink)
    return sink.getvalue().to_pybytes()


def _uniform(column: Sequence[Any]) -> list[Any]:
    """Values of one type: whole numbers beside others become floating point, any other mixture becomes text."""
    kinds: set[type[Any]] = {type(value) for value in column if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in column]
    if len(kinds) <= 1 and not kinds & {list, dict}:
        return list(column)
    return [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in column]


def as_frame(trials: Trials) -> Any:
    """A pandas DataFrame, or a list of dicts with the same columns if pandas is not installed."""
    columns, rows = table_of(trials)
    if find_spec("pandas") is None:
        return [dict(zip(columns, row, strict=True)) for row in rows]
    return import_module("pandas").DataFrame(rows, columns=columns)
