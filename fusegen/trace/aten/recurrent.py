"""Importers of recurrent networks, which a trace keeps whole."""

from __future__ import annotations

from fusegen.ir import DType, RecurrentOp
from fusegen.trace.aten.call import Call, Value, register


@register("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def _recurrent(call: Call) -> tuple[Value | None, ...] | None:
    """Without dropout between layers that draws, and with outputs as wide as states (no projections)."""
    x, params = call["input"], call["params"]
    states = call["hx"] if isinstance(call["hx"], list) else [call["hx"]]
    width = states[0].type.shape[-1]
    drawn = call["dropout"] != 0.0 and call["train"] and call["num_layers"] > 1
    if drawn or x.type.dtype is not DType.FLOAT32 or any(s.type.shape[-1] != width for s in states):
        return None
    op = RecurrentOp(
        cell=call["fn"],
        layers=call["num_layers"],
        bidirectional=call["bidirectional"],
        bias=call["has_biases"],
        batch_first=call["batch_first"],
    )
    return call.build.several(op, call.results, x, *states, *params)
