"""From a model file to a ``Graph``: load, export under fake tensors, convert."""

from fusegen.trace.exporting import TracedModel, trace
from fusegen.trace.model_file import LoadedModel, instantiate, load_model_file

__all__ = ["LoadedModel", "TracedModel", "instantiate", "load_model_file", "trace"]
