"""Linear algebra over whole chains: what a reduction or a pooling throws away is never computed.

Every rule holds for all inputs and parameters. Sums are reassociated, so results agree in real
arithmetic and differ from eager's in rounding only.
"""

from __future__ import annotations

from fusegen.ir import Graph
from fusegen.passes import simplify
from fusegen.passes.algebra import (
    axes,
    boxes,
    channels,
    collapse,
    diagonals,
    dots,
    elementwise,
    interpolation,
    joined_pools,
    named,
    padding,
    pairs,
    parts,
    pooled_norms,
    pools,
    powers,
    products,
    samples,
    scales,
    scans,
    slices,
    spread,
    transposed_pools,
    upsampled,
    views,
    whole,
    window_products,
    windows,
)
from fusegen.passes.rewrite import Outcome, rewrite

# Cheap forms first: a rule that moves a scale meets it before a collapse has hidden the convolution. Box means, which
# compare themselves with averaged kernels, before those.
RULES = (
    *elementwise.RULES,
    *powers.RULES,
    *scales.RULES,
    *slices.RULES,
    *pairs.RULES,
    *views.RULES,
    *joined_pools.RULES,
    *parts.RULES,
    *interpolation.RULES,
    *spread.RULES,
    *named.RULES,
    *windows.RULES,
    *window_products.RULES,
    *padding.RULES,
    *scans.RULES,
    *boxes.RULES,
    *pools.RULES,
    *transposed_pools.RULES,
    *pooled_norms.RULES,
    *samples.RULES,
    *diagonals.RULES,
    *dots.RULES,
    *products.RULES,
    *channels.RULES,
    *axes.RULES,
    *collapse.RULES,
    *upsampled.RULES,
    *whole.RULES,
)


def run(graph: Graph) -> Outcome:
    """%y = reduce.mean(conv(%x, %w), axes=(2, 3))  ->  %y = reshape(conv(window_sum(%x), tap_sum(%w)))."""
    return rewrite(graph, (*simplify.RULES, *RULES))
