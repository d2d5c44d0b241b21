"""Carrying a reference model into a generated module."""

from fusegen.carry.clean import FORBIDDEN, reword
from fusegen.carry.description import attribute_path, carry_graph
from fusegen.carry.model import PREFIX, REFERENCE, CarriedModel, ForwardParameter
from fusegen.carry.source import RESERVED, carry_model

__all__ = [
    "FORBIDDEN",
    "PREFIX",
    "REFERENCE",
    "RESERVED",
    "CarriedModel",
    "ForwardParameter",
    "attribute_path",
    "carry_graph",
    "carry_model",
    "reword",
]
