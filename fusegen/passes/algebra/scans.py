"""Scans from the other end, and of what comes before an element."""

from __future__ import annotations

from fusegen import dims
from fusegen.ir import CatOp, FillOp, FlipOp, Graph, Node, PadOp, ScanOp, SliceOp
from fusegen.ops import SCAN_STARTS
from fusegen.passes.rewrite import Match, Numerics, Rule, anything, op


def _scan(m: Match) -> ScanOp:
    found = m["scan"].op
    assert isinstance(found, ScanOp)
    return found


def _same_flips(m: Match) -> str | None:
    return None if m.root.op == m["first"].op else ""


def _from_the_other_end(m: Match) -> Node:
    assert isinstance(m.root.op, FlipOp)
    scan = _scan(m)
    return m.add(scan.replace(reverse=scan.reverse != (scan.axis in m.root.op.axes)), m["x"])


def _started(graph: Graph, join: Node, scan: ScanOp) -> Node | None:
    """What ``join`` has behind elements that change nothing in ``scan``, or before them if that is reverse."""
    assert isinstance(join.op, CatOp)
    if join.op.axis != scan.axis or scan.exclusive or len(join.inputs) != 2:
        return None
    start, rest = (graph.node(name) for name in (join.inputs[::-1] if scan.reverse else join.inputs))
    return rest if isinstance(start.op, FillOp) and start.op.value == SCAN_STARTS[scan.fn] else None


def _scanned_join(m: Match) -> Node:
    join, scan = m["join"], _scan(m)
    rest = _started(m.graph, join, scan)
    assert rest is not None
    scanned = m.add(scan, rest)
    return m.add(join.op, *(scanned if name == rest.name else m.graph.node(name) for name in join.inputs))


def _padded_start(m: Match) -> str | None:
    """The padding is what the scan begins with, and along its axis comes before the data."""
    pad, scan = m["pad"].op, _scan(m)
    assert isinstance(pad, PadOp)
    behind = (pad.before if scan.reverse else pad.after)[scan.axis]
    return None if pad.value == SCAN_STARTS[scan.fn] and not behind and not scan.exclusive else ""


def _is_without_last(part: Node, whole: Node, scan: ScanOp) -> bool:
    """Whether ``part`` of ``whole`` lacks the element that ``scan`` comes to last, and no other."""
    length = dims.sub(whole.type.shape[scan.axis], 1)
    return part.op == SliceOp(axis=scan.axis, start=int(scan.reverse), length=length)


def _moved_on(m: Match) -> tuple[ScanOp, Node] | None:
    """The scan, and of what, whose results the match has one place further on, behind a start."""
    graph, root = m.graph, m.root
    join = m["join"] if isinstance(root.op, SliceOp) else root
    for rest in map(graph.node, join.inputs):
        chain = [rest]
        while len(chain) < 3 and isinstance(chain[-1].op, (ScanOp, SliceOp)):
            chain.append(graph.node(chain[-1].inputs[0]))
        scan = next((node.op for node in chain[:2] if isinstance(node.op, ScanOp)), None)
        if scan is None or _started(graph, join, scan) is not rest:
            continue
        if dims.sub(join.type.shape[scan.axis], rest.type.shape[scan.axis]) != 1:
            continue
        if join is not root:  # all but the last of a start and the scan
            if isinstance(rest.op, ScanOp) and _is_without_last(root, join, scan):
                return scan, chain[1]
        elif len(chain) == 3:
            part = next((node for node in chain[:2] if isinstance(node.op, SliceOp)), None)
            if part and _is_without_last(part, graph.node(part.inputs[0]), scan):
                return scan, chain[2]
    return None


def _exclusive(m: Match) -> Node:
    found = _moved_on(m)
    assert found is not None
    scan, x = found
    return m.add(scan.replace(exclusive=True), x)


def _is_moved_on(m: Match) -> str | None:
    return None if _moved_on(m) else ""


RULES = (
    Rule(
        "flip(scan(flip(x))) = scan(x) from the other end",
        op(FlipOp, op(ScanOp, op(FlipOp, anything("x"), name="first"), name="scan")),
        _from_the_other_end,
        Numerics.REASSOCIATES,
        _same_flips,
    ),
    Rule(
        "scan(cat(start, x)) = cat(start, scan(x)),  start 0 for sums, 1 for products",
        op(ScanOp, op(CatOp, name="join"), name="scan"),
        _scanned_join,
        Numerics.REASSOCIATES,
        lambda m: None if _started(m.graph, m["join"], _scan(m)) else "",
    ),
    Rule(
        "scan(pad(x)) = pad(scan(x)),  padding 0 for sums, 1 for products, before the data",
        op(ScanOp, op(PadOp, anything("x"), name="pad"), name="scan"),
        lambda m: m.add(m["pad"].op, m.add(_scan(m), m["x"])),
        Numerics.REASSOCIATES,
        _padded_start,
    ),
    Rule(
        "cat(start, scan(x)) without its last = scan(x) of what is before",
        op(SliceOp, op(CatOp, name="join")),
        _exclusive,
        Numerics.REASSOCIATES,
        _is_moved_on,
    ),
    Rule(
        "cat(start, scan(x without its last)) = scan(x) of what is before,  scan(x) without its last likewise",
        op(CatOp),
        _exclusive,
        Numerics.REASSOCIATES,
        _is_moved_on,
    ),
)
