"""A TOML table whose fields are taken one by one, each with its kind; whatever is left at the end is a mistake."""

from __future__ import annotations

from typing import Any


class TableError(ValueError):
    """A field is missing, unknown or of the wrong kind; the message is one sentence that names it and its table."""


_KINDS = {str: "a string that is not empty", int: "a whole number", float: "a number", bool: "true or false"}


class Table:
    """`left` is what has not been taken; `where` begins every message."""

    def __init__(self, left: dict[str, Any], where: str) -> None:
        self.left = dict(left)
        self.where = where

    def fault(self, what: str) -> TableError:
        return TableError(f"{self.where}: {what}.")

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        if name not in self.left and default is not None:
            return default
        if name not in self.left:
            raise self.fault(f"{name} is missing")
        value = self.left.pop(name)
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not fits or (kind is not bool and isinstance(value, bool)) or value == "" or value != value:
            raise self.fault(f"{name} is {value!r}, but must be {_KINDS[kind]}")
        return float(value) if kind is float else value

    def table(self, name: str) -> Table:
        """The sub-table; an empty one when it is left out."""
        value = self.left.pop(name, {})
        if not isinstance(value, dict):
            raise self.fault(f"{name} must be a table")
        return Table(value, f"{self.where}, {name}")

    def end(self) -> None:
        if self.left:
            raise self.fault(f"unknown field {next(iter(self.left))}")
