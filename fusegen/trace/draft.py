"""A graph while it is made from an fx graph: its sizes, its nodes, and the line that each comes from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import fx

from fusegen import dims, ops
from fusegen.dims import Dim
from fusegen.errors import GraphError, TraceError, UnsupportedOpError
from fusegen.ir import (
    INTEGERS,
    WIDE_INTEGERS,
    ConstOp,
    DType,
    EagerOp,
    FillOp,
    GetItemOp,
    Node,
    Op,
    ParamOp,
    TensorType,
)
from fusegen.literals import python_float
from fusegen.trace.asked import SizeArithmeticError, unsaid
from fusegen.trace.aten import Value


class Draft:
    """Nodes, updates and conditions so far. ``current``: the fx node that is converted."""

    def __init__(self, path: Path):
        self.path = path
        self.nodes: dict[str, Node] = {}
        self.updates: dict[str, str] = {}
        self.renames: dict[sympy.Symbol, sympy.Expr] = {}
        self.sizes: dict[str, int] = {}
        self.inputs: list[Value] = []
        self.conditions: dict[str, None] = {}
        self.parts: dict[str, tuple[Value | float, Value | float]] = {}
        """The real and imaginary parts of complex tensors, where these are known."""
        self.current: fx.Node | None = None
        self.fresh = 0

    # --- sizes --------------------------------------------------------------------------------

    def dim(self, size: Any) -> Dim:
        if isinstance(size, int) and not isinstance(size, bool):
            return size
        expr = size.node.expr.xreplace(self.renames)
        if not {symbol.name for symbol in expr.free_symbols} <= set(self.sizes):
            raise TraceError(
                "the size of a result depends on tensor values",
                node=self.current.name if self.current else None,
                source=self.source(),
                hint="use torch.where or a mask instead of selecting elements",
            )
        try:
            dim = dims.canonical(expr)
        except ValueError as error:
            raise self.unsaid(expr) from error
        if any(dims.evaluate(part, self.sizes) < 0 for part in dims.numerators(dim)):
            raise self.unsaid(expr)
        return dim

    def at_least(self, size: Dim, bound: Dim) -> bool:
        holds = dims.evaluate(size, self.sizes) >= dims.evaluate(bound, self.sizes)
        difference = dims.parse(dims.sub(size, bound))
        if not (difference.is_nonnegative if holds else difference.is_negative):  # else it holds at all sizes
            self.conditions[f"{size} {'>=' if holds else '<'} {bound}"] = None
        return holds

    def not_empty(self, size: Dim) -> None:
        if not isinstance(size, int):
            self.conditions[f"{size} >= 1"] = None

    def unsaid(self, expr: sympy.Basic) -> SizeArithmeticError:
        return unsaid(expr, self.current.name if self.current else None, self.source())

    def type_of(self, value: torch.Tensor, where: str) -> TensorType:
        name = str(value.dtype).removeprefix("torch.")
        try:
            dtype = DType(name)
        except ValueError as error:
            raise UnsupportedOpError(
                f"element type {name} is not supported", node=where, source=self.source()
            ) from error
        return TensorType(dtype=dtype, shape=tuple(self.dim(size) for size in value.shape))

    # --- nodes --------------------------------------------------------------------------------

    def source(self) -> str | None:
        """The line of the model file, else of the innermost library frame, that made the current op."""
        trace = self.current.meta.get("stack_trace") if self.current is not None else None
        frames = re.findall(r'File "([^"]+)", line (\d+)', trace or "")
        mine = [frame for frame in frames if frame[0] == str(self.path)]
        chosen = (mine or frames)[-1:] if frames else []
        return f"{Path(chosen[0][0]).name}:{chosen[0][1]}" if chosen else None

    def unique(self, stem: str) -> str:
        name = re.sub(r"\W", "_", stem)
        while name in self.nodes:
            self.fresh += 1
            name = f"{stem}_{self.fresh}"
        return name

    def emit(self, stem: str, op: Op, operands: tuple[Value, ...], declared: TensorType) -> Value:
        inferred = ops.infer(op, tuple(v.type for v in operands), declared)
        name = self.unique(stem)
        self.nodes[name] = Node(
            name=name, op=op, inputs=tuple(v.name for v in operands), type=inferred, source=self.source()
        )
        return Value(name, inferred)

    def add(self, op: Op, *operands: Value) -> Value:
        assert self.current is not None
        return self.emit(self.current.name, op, operands, operands[0].type)

    def several(self, op: Op, results: tuple[TensorType, ...], *operands: Value) -> tuple[Value, ...]:
        source = self.add(op, *operands)
        return tuple(self.emit(source.name, GetItemOp(index=i), (source,), type_) for i, type_ in enumerate(results))

    def scalar(self, value: float | Dim, like: Value) -> Value:
        stored: int | float | str = value if isinstance(value, str) else float(value)
        if like.type.dtype in INTEGERS and not isinstance(value, str):
            bits = 8 * like.type.dtype.bytes - 1
            if like.type.dtype not in WIDE_INTEGERS or value != int(value) or not -(2**bits) <= value < 2**bits:
                raise GraphError(f"{value} among {like.type.dtype.value} is left to torch")
            stored = int(value)
        return self.emit("scalar", ConstOp(value=stored), (), like.type.replace(shape=()))

    def update(self, buffer: Value, value: Value) -> None:
        op = self.nodes[buffer.name].op
        assert isinstance(op, ParamOp)
        self.updates[op.path] = value.name

    def made_by(self, value: Value) -> tuple[Op, tuple[Value, ...]]:
        node = self.nodes[value.name]
        return node.op, tuple(Value(name, self.nodes[name].type) for name in node.inputs)

    # --- tensors of numbers ---------------------------------------------------------------------

    def first_input(self, dtype: DType | None) -> Value | None:
        return next((value for value in self.inputs if dtype in (value.type.dtype, None)), None)

    def full(self, stem: str, number: float, type_: TensorType) -> Value:
        """A tensor of one number, where the inputs are; by torch where none of them has its element type."""
        like = self.first_input(type_.dtype)
        if like is not None and isinstance(number, float):
            return self.emit(stem, FillOp(value=number, shape=type_.shape), (like,), type_)
        if not self.inputs:
            raise self.refused(stem)
        value = python_float(number) if isinstance(number, float) else repr(number)
        shape = ", ".join(map(str, type_.shape))
        arguments = f"[{shape}], {value}, dtype=torch.{type_.dtype.value}, device={{0}}.device"
        op = EagerOp(target="aten.full.default", arguments=arguments, results=(type_,), tuple_result=False)
        return self.emit(stem, op, (self.inputs[0],), type_)

    def as_tensor(self, value: Value) -> Value:
        """``value``, or the tensor of a number that is none yet."""
        held = self.nodes[value.name].op
        number = held.value if isinstance(held, ConstOp) and self.inputs else None
        return self.full("fill", number, value.type) if isinstance(number, float) else value

    def refused(self, path: str, hint: str = "register it as a buffer") -> UnsupportedOpError:
        return UnsupportedOpError(
            f"forward creates a constant tensor ({path})",
            node=self.current.name if self.current else None,
            source=self.source(),
            hint=hint,
        )
