"""Importers of pooling."""

from __future__ import annotations

from functools import partial
from typing import Literal

from fusegen.ir import AdaptivePoolOp, PoolOp, ReduceOp
from fusegen.trace.aten.call import IMPORTERS, Call, Value, spread

_Fn = Literal["max", "mean"]


def _pool(call: Call, fn: _Fn, rank: int) -> Value | None:
    x = call["self"]
    kernel = spread(call["kernel_size"], rank)
    if x.type.rank not in (rank + 1, rank + 2):
        return None
    op = PoolOp(
        fn=fn,
        kernel=kernel,
        stride=spread(call["stride"], rank) if call["stride"] else kernel,
        padding=spread(call["padding"], rank),
        dilation=spread(call.args.get("dilation", 1), rank),
        ceil=call["ceil_mode"],
        count_include_pad=call.args.get("count_include_pad", True),
        divisor=call.args.get("divisor_override"),
        size=call.result.shape[-rank:],
    )
    return call.build.add(op, x)


def _adaptive(call: Call, fn: _Fn, rank: int) -> Value | None:
    """Over whole axes it is a reduction, over equal windows a pooling of those, else windows of several lengths."""
    x = call["self"]
    if x.type.rank not in (rank + 1, rank + 2):
        return None
    before, after = x.type.shape[-rank:], call.result.shape[-rank:]
    first = x.type.rank - rank
    whole = tuple(first + axis for axis in range(rank) if after[axis] == 1 != before[axis])
    if all(after[axis] in (1, before[axis]) for axis in range(rank)):
        return call.build.add(ReduceOp(fn=fn, axes=whole, keepdim=True), x) if whole else x
    ratios = []
    for size, parts in zip(before, after, strict=True):
        if not isinstance(size, int) or not isinstance(parts, int) or size % parts:
            return call.build.add(AdaptivePoolOp(fn=fn, size=after), x)
        ratios.append(size // parts)
    kernel, nothing, one = tuple(ratios), (0,) * rank, (1,) * rank
    return call.build.add(PoolOp(fn=fn, kernel=kernel, stride=kernel, padding=nothing, dilation=one, size=after), x)


for _rank in (1, 2, 3):
    for _fn, _name in (("max", "max"), ("mean", "avg")):
        _import: dict[str, partial[Value | None]] = {
            f"{_name}_pool{_rank}d.default": partial(_pool, fn=_fn, rank=_rank),  # type: ignore[arg-type]
            f"adaptive_{_name}_pool{_rank}d.default": partial(_adaptive, fn=_fn, rank=_rank),  # type: ignore[arg-type]
        }
        IMPORTERS.update(_import)
    IMPORTERS[f"max_pool{_rank}d_with_indices.default"] = IMPORTERS[f"max_pool{_rank}d.default"]
