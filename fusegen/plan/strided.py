"""Views of views of a kernel's result, which lies row by row: one view, by strides."""

from __future__ import annotations

from dataclasses import dataclass

from fusegen import dims
from fusegen.dims import Dim, Dims
from fusegen.ir import ExpandOp, Graph, Node, PermuteOp, RegionOp, ReshapeOp, SliceOp, UnfoldOp
from fusegen.plan import cost, native
from fusegen.spaces import placement, viewspace
from fusegen.spaces.placement import Places

_VIEWS = (ReshapeOp, PermuteOp, ExpandOp, SliceOp, UnfoldOp)


@dataclass(frozen=True)
class Strided:
    """A view of ``root``, from element ``offset`` on."""

    root: str
    shape: Dims
    strides: tuple[Dim, ...]
    offset: Dim

    @property
    def torch(self) -> str:
        """A Python expression over ``v_<root>`` and sizes."""
        shape, strides = (f"[{', '.join(map(str, sizes))}]" for sizes in (self.shape, self.strides))
        return f"torch.as_strided(v_{self.root}, {shape}, {strides}, {self.offset})"

    @property
    def native(self) -> str:
        """The same in C++."""
        return native.as_strided(f"v_{self.root}", self.shape, self.strides, self.offset)


def strided(graph: Graph, node: Node) -> Strided | None:
    """``node`` as one view of a kernel's result, if it is a view of a view of that, and no size has to be divided."""
    shape, names = node.type.shape, [f"axis{axis}" for axis in range(node.type.rank)]
    places: Places = tuple(map(placement.position, names, shape))
    views, root = 0, node
    while isinstance(root.op, _VIEWS) and not viewspace.is_copied(root, graph):
        source = graph.node(root.inputs[0])
        ((read),) = placement.reads(root, [source], places)
        places, root, views = read.places, source, views + 1
    by_rows = isinstance(root.op, RegionOp) or cost.is_result_of_kernel(graph, root)
    if views < 2 or not by_rows or root.name in dict(graph.updates).values():
        return None
    found = dict[str, Dim](dict.fromkeys(names, 0))
    offset: Dim = 0
    pending = list(placement.joined(zip(places, placement.row_major(root.type.shape), strict=True), graph.sizes))
    while pending:
        digit, stride = pending.pop()
        if digit.stride != 1 or digit.size != digit.total:
            return None
        if isinstance(digit.of, str):
            found[digit.of] = dims.add(found[digit.of], stride)
        else:
            assert isinstance(digit.of, placement.Moved)
            offset = dims.add(offset, dims.mul(stride, digit.of.start))
            pending += placement.joined(
                [(place, dims.mul(stride, step)) for place, step in digit.of.terms], graph.sizes
            )
    return Strided(root.name, shape, tuple(found[name] for name in names), offset)


def collapse(graph: Graph) -> tuple[dict[str, Strided], set[str]]:
    """The views that are one, by name, and those that nothing reads then."""
    found = {node.name: one for node in graph.nodes if (one := strided(graph, node))}
    nodes = (n.replace(inputs=(found[n.name].root,)) if n.name in found else n for n in graph.nodes)
    live = graph.replace(nodes=tuple(nodes)).needed(*graph.results)
    return found, {node.name for node in graph.nodes if isinstance(node.op, _VIEWS) and node.name not in live}
