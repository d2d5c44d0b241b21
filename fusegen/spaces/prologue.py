"""The elementwise chain before a contraction: what happens to each value of its data before the products."""

from __future__ import annotations

from fusegen.dims import Dims
from fusegen.ir import ConstOp, ConvOp, DType, Graph, InputOp, MatmulOp, Node, PointwiseOp, ReshapeOp
from fusegen.spaces.poolspace import CHANNELS, along
from fusegen.spaces.rowspace import NotFusable, RowSpace


def split(body: Graph) -> tuple[Graph | None, Graph]:
    """The chain, if there is one, and ``body`` with its result as an input: what the products are of.

    v = relu(x); y = conv(v, w); z = y + 1  ->  v = relu(x)  and  y = conv(v, w); z = y + 1. Raises ``NotFusable``.
    """
    heads = [node for node in body.nodes if isinstance(node.op, (ConvOp, MatmulOp))]
    if len(heads) != 1 or isinstance(body.node(heads[0].inputs[0]).op, InputOp):
        return None, body
    data = body.node(heads[0].inputs[0])
    needed = body.needed(data.name)
    before = body.replace(name=data.name, nodes=tuple(n for n in body.nodes if n.name in needed), outputs=(data.name,))
    if not all(isinstance(node.op, (PointwiseOp, ReshapeOp, ConstOp, InputOp)) for node in before.nodes):
        raise NotFusable(f"{data.name} is not elementwise")
    chain = {node.name for node in before.nodes if not isinstance(node.op, (ConstOp, InputOp))} | {source(before).name}
    others = [node for node in body.nodes if node not in heads and node.name not in chain]
    if any(chain & set(node.inputs) for node in others) or chain & set(heads[0].inputs[1:]):
        raise NotFusable(f"what {heads[0].name} multiplies is read after it too")
    made = data.replace(op=InputOp(position=0), inputs=())
    read = {name for node in (*others, *heads) for name in node.inputs} | {data.name}
    after = [made if node is data else node for node in body.nodes if node is data or node.name not in chain]
    leaves = (ConstOp, InputOp)
    return before, body.replace(nodes=tuple(n for n in after if n.name in read or not isinstance(n.op, leaves)))


def space(before: Graph, head: Node) -> RowSpace:
    """The space of such a chain, rows along channels (features). Raises ``NotFusable``.

    Its operands have a value for every channel, or one.
    """
    data = source(before)
    shape, axis = data.type.shape, CHANNELS if isinstance(head.op, ConvOp) else data.type.rank - 1
    found = along(before, data.name, axis)
    for node in before.nodes:
        if node.type.dtype is not DType.FLOAT32 and isinstance(node.op, InputOp):
            raise NotFusable(f"{node.name} is {node.type.dtype.value}")
        if isinstance(node.op, PointwiseOp):
            for name in node.inputs:
                own = before.node(name).type.shape
                follows = own == shape and data.name in before.needed(name)  # whatever shape others had first
                if not follows and _varies(own, len(shape), axis):
                    raise NotFusable(f"{name} differs from position to position")
    return found


def source(before: Graph) -> Node:
    """The data: the operand that lies as the result does."""
    shape = before.node(before.outputs[0]).type.shape
    found = [node for node in before.inputs if node.type.shape == shape]
    if len(found) != 1:
        several = "several tensors" if found else "no tensor"
        raise NotFusable(f"{before.outputs[0]}, which is multiplied, is made of {several} of its shape: one is read")
    return found[0]


def _varies(shape: Dims, rank: int, along: int) -> bool:
    return any(size != 1 and axis + rank - len(shape) != along for axis, size in enumerate(shape))
