"""What stays with torch's libraries goes back to the form in which they are called best."""

from __future__ import annotations

from collections.abc import Iterable

from fusegen.ir import ConvOp, Graph, InputOp, MatmulOp, Node, PointwiseOp, RegionOp, ReshapeOp, RuleRefused
from fusegen.passes.rewrite import Match, Numerics, Outcome, Rule, anything, op, rewrite


def _only_adds_bias(m: Match) -> str | None:
    region, heavy, b = m.root.op, m["heavy"], m["b"]
    assert isinstance(region, RegionOp)
    if len(region.body.outputs) > 1:
        return ""
    if isinstance(heavy.op, MatmulOp) and not heavy.op.biased:
        return "torch multiplies without the bias, and its library may add up in another order with one"
    axis = 1 if isinstance(heavy.op, ConvOp) else heavy.type.rank - 1
    work = [node for node in region.body.nodes if not isinstance(node.op, InputOp)]
    while isinstance(work[-1].op, ReshapeOp) and len(work) > 1:  # of the result
        work.pop()
    product, bias = (region.body.inputs[m.root.inputs.index(outside.name)] for outside in (heavy, b))
    spread = work[0] if isinstance(work[0].op, ReshapeOp) else bias
    shape = spread.type.shape
    lined_up = len(shape) == heavy.type.rank - axis and all(size == 1 for size in shape[1:])
    adds = work[-1].op == PointwiseOp(fn="add") and set(work[-1].inputs) == {product.name, spread.name}
    whole = b.type.shape == (heavy.type.shape[axis],) and lined_up and shape[0] == b.type.shape[0]
    if len(heavy.inputs) > 2 or len(work) > 2 or not adds or not whole or not m.only_user("heavy"):
        return ""
    return None


def _with_bias(m: Match) -> Node:
    heavy, shape = m["heavy"], m.root.type.shape
    found = m.add(heavy.op, m["x"], m["w"], m["b"])
    return found if found.type.shape == shape else m.add(ReshapeOp(shape=shape), found)


RULES = tuple(
    Rule(
        f"{name}(x, w) + b = {name}(x, w, b)",
        op(RegionOp, op(kind, anything("x"), anything("w"), name="heavy"), anything("b"), commutative=True),
        _with_bias,
        Numerics.EXACT,
        _only_adds_bias,
    )
    for name, kind in (("conv", ConvOp), ("matmul", MatmulOp))
)
IDENTITIES = frozenset(rule.identity for rule in RULES)
"""What depends on how fusion turned out, not on the model's algebra."""


def run(graph: Graph) -> Outcome:
    """%m = matmul(%x, %w); %y = region(%m, %b) { add }  ->  %y = matmul(%x, %w, %b), reshaped as the region does."""
    return rewrite(graph, RULES)


def renamed(before: Graph, after: Graph, refused: Iterable[RuleRefused]) -> tuple[RuleRefused, ...]:
    """``refused`` with what was said of a product under the name that it has in ``after``, together with its bias."""
    names: dict[str, str] = {}
    made = after.by_name
    for node in before.nodes:
        if not isinstance(node.op, RegionOp) or node.name not in made:
            continue
        product = made[node.name]
        while isinstance(product.op, ReshapeOp):
            product = made[product.inputs[0]]
        if isinstance(product.op, (ConvOp, MatmulOp)):
            names |= {name: product.name for name in node.inputs if isinstance(before.node(name).op, type(product.op))}
    return tuple(event.replace(node=names.get(event.node, event.node)) for event in refused)
