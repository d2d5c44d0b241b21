"""From a program to the text of one self-contained Python module."""

from fusegen.emit.files import write_atomic
from fusegen.emit.module import emit_module
from fusegen.emit.render import environment, render
from fusegen.emit.rules import check_rules, violations
from fusegen.emit.structure import Attribute, ModuleSnapshot, snapshot_modules

__all__ = [
    "Attribute",
    "ModuleSnapshot",
    "check_rules",
    "emit_module",
    "environment",
    "render",
    "snapshot_modules",
    "violations",
    "write_atomic",
]
