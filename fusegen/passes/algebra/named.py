"""Elements that numbers name, of what is computed: computed where they are named, and not written for that."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import (
    ArgReduceOp,
    DType,
    GatherElementsOp,
    GatherOp,
    Node,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    SoftmaxOp,
)
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op

_READ_ELSEWHERE = "what the numbers name is read elsewhere too, so it must be written anyway"
_KERNELS = (PointwiseOp, ReduceOp, SoftmaxOp, GatherElementsOp)
"""Ops that take what they read from the kernel that they are in."""


def _op(m: Match) -> GatherElementsOp:
    assert isinstance(m.root.op, GatherElementsOp)
    return m.root.op


def _few(m: Match) -> str | None:
    """None where no more elements are named than there are, and nobody else needs those in memory."""
    sizes, whole = m.graph.sizes, m["whole"]
    if dims.numel(m.root.type.shape, sizes) > dims.numel(whole.type.shape, sizes):
        return ""
    readers = [m.graph.node(name).op for name in m.graph.users[whole.name]]
    written = whole.name in m.graph.results or not all(isinstance(reader, _KERNELS) for reader in readers)
    return _READ_ELSEWHERE if written else None


def _extreme(m: Match) -> Node:
    """%p = argmax(%x); gather_elements(%x, %p)  ->  reduce.max(%x)."""
    found = m["place"].op
    assert isinstance(found, ArgReduceOp)
    fn = found.fn.removeprefix("arg")
    return m.add(ReduceOp.model_validate({"fn": fn, "axes": (found.axis,), "keepdim": True}), m["x"])


def _at_its_extreme(m: Match) -> str | None:
    place = m["place"].op
    assert isinstance(place, ArgReduceOp)
    own = place.axis == _op(m).axis and place.keepdim and m["place"].inputs == (m["x"].name,)
    return None if own else ""


def _of_softmax(m: Match) -> Node:
    """gather_elements(log_softmax(%x), %i)  ->  gather_elements(%x, %i) - max(%x) - log(sum(exp(%x - max(%x))))."""
    x, i, axis, softmax = m["x"], m["i"], _op(m).axis, m["whole"].op
    assert isinstance(softmax, SoftmaxOp)
    peak = m.add(ReduceOp(fn="max", axes=(axis,), keepdim=True), x)
    power = m.add(PointwiseOp(fn="exp"), m.add(PointwiseOp(fn="sub"), x, peak))
    total = m.add(ReduceOp(fn="sum", axes=(axis,), keepdim=True), power)
    apart = m.add(PointwiseOp(fn="sub"), m.add(_op(m), x, i), peak)
    if softmax.log:
        return m.add(PointwiseOp(fn="sub"), apart, m.add(PointwiseOp(fn="log"), total))
    return m.add(PointwiseOp(fn="div"), m.add(PointwiseOp(fn="exp"), apart), total)


def _is_along(m: Match) -> str | None:
    softmax = m["whole"].op
    assert isinstance(softmax, SoftmaxOp)
    along = softmax.axis == _op(m).axis and m["x"].type.dtype is DType.FLOAT32
    return _few(m) if along else ""


def _named_of(m: Match, operand: Node) -> Node | None:
    """What is named of an operand of the function: all of one that is the same along the axis; None: neither."""
    gather, shape, i = _op(m), m["whole"].type.shape, m["i"]
    axis = gather.axis - len(shape) + operand.type.rank
    if operand.type.shape == shape:
        return m.add(gather, operand, i)
    if axis < 0 or operand.type.shape[axis] == 1:
        return operand
    if operand.type.rank == 1 and gather.ignored is None:  # a number for each element of the last axis
        return m.add(GatherOp(axis=0, wraps=gather.wraps), operand, i)
    return None


def _of_function(m: Match) -> Node:
    """%y = exp(%x); gather_elements(%y, %i)  ->  exp(gather_elements(%x, %i))."""
    whole = m["whole"]
    named = [_named_of(m, m.graph.node(name)) for name in whole.inputs]
    return m.add(whole.op, *(node for node in named if node is not None))


def _each_is_named(m: Match) -> str | None:
    whole = m["whole"]
    probe = Match(m.graph, m.root, m.captures)
    operands = [m.graph.node(name) for name in whole.inputs]
    if any(_named_of(probe, operand) is None for operand in operands) or whole.type.rank == 0:
        return ""
    return _few(m)


def _in_order(m: Match) -> Node:
    """%s = slice(%i); %u = reshape(%s); gather_elements(%x, %u)  ->  gather_elements(%x, slice(reshape(%i)))."""
    part, shape = m["part"], m["numbers"].type.shape
    assert isinstance(part.op, SliceOp)
    places = [axis for axis, size in enumerate(shape) if size != 1]
    own = [axis for axis, size in enumerate(part.type.shape) if size != 1]
    axis, whole = places[own.index(part.op.axis)], m["i"].type.shape[part.op.axis]
    viewed = m.add(ReshapeOp(shape=(*shape[:axis], whole, *shape[axis + 1 :])), m["i"])
    return m.add(_op(m), m["x"], m.add(part.op.replace(axis=axis), viewed))


def _adds_ones(m: Match) -> str | None:
    part = m["part"]
    assert isinstance(part.op, SliceOp)
    sizes = [[size for size in m[name].type.shape if size != 1] for name in ("part", "numbers")]
    return None if sizes[0] == sizes[1] and part.type.shape[part.op.axis] != 1 else ""


RULES = (
    Rule(
        "x[reshape(i[a:b])] = x[reshape(i)[a:b]],  the reshape adding axes of one element",
        op(GatherElementsOp, anything("x"), op(ReshapeOp, op(SliceOp, anything("i"), name="part"), name="numbers")),
        _in_order,
        Numerics.EXACT,
        _adds_ones,
    ),
    Rule(
        "x[argmax(x)] = max(x),  argmin likewise",
        op(GatherElementsOp, anything("x"), op(ArgReduceOp, name="place")),
        _extreme,
        Numerics.REASSOCIATES,  # of zeros of either sign any may be the maximum
        _at_its_extreme,
    ),
    Rule(
        "log_softmax(x)[i] = x[i] - max(x) - log(sum(exp(x - max(x)))),  softmax likewise,  i along the softmax",
        op(GatherElementsOp, op(SoftmaxOp, anything("x"), name="whole"), anything("i")),
        _of_softmax,
        Numerics.REASSOCIATES,
        _is_along,
    ),
    Rule(
        "f(x, ..)[i] = f(x[i], ..),  f elementwise",
        op(GatherElementsOp, op(PointwiseOp, name="whole"), anything("i")),
        _of_function,
        Numerics.EXACT,
        _each_is_named,
    ),
)
