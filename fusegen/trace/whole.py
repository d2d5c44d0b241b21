"""Calls that a trace keeps whole, and what torch's shape functions leave unsaid about them.

A recurrent network is one node whose shapes are known at once: torch's own shape function for it runs every time
step. That of a loss of class numbers is wrong. Attention computes nonsense where its operands' sizes disagree, and its
shape function does not ask. Nor does that of ``gather``, which leaves out what numbers have no axis for: whether they
have is a question, so that axes of one size are one size. Covariances look at a number only to warn, losses of
variances at these only to raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import gaussian_nll_loss, nll_loss, scaled_dot_product_attention
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from fusegen.trace import quotients

NAMESPACE = "fusegen"
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def aten_name(target: str) -> str:
    """The ATen overload that a traced call stands for: ``fusegen.lstm.input`` is ``aten.lstm.input``."""
    name = target.removeprefix(f"{NAMESPACE}.")
    return target if name == target else f"aten.{name}"


def _recurrent_shapes(
    input: Tensor,
    hx: Any,
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Empty results of a recurrent network: what every step puts out, and the last state(s).

    A state is ``[layers x directions, batch, features]``; ``input`` has three axes or, of one sequence, two.
    """
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    return (input.new_empty((*input.shape[:-1], features)), *(state.new_empty(state.shape) for state in states))


def _kept(aten: torch._ops.OpOverload, shapes: Callable[..., Any]) -> torch._ops.OpOverload:
    """An op of ours that stands for ``aten``, whose results ``shapes`` gives, empty."""
    schema = str(aten._schema).removeprefix("aten::")
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{schema[: schema.index('(')]}", shapes, lib=_LIBRARY)
    own: torch._ops.OpOverload = getattr(getattr(torch.ops.fusegen, aten._opname), aten._overloadname)
    return own


_WHOLE: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(torch._VF, name): _kept(getattr(torch.ops.aten, name).input, _recurrent_shapes) for name in RECURRENT
}


def _agree(some: Iterable[Any], others: Iterable[Any]) -> None:
    """Sizes that broadcast are the same wherever neither is 1."""
    for one, other in zip(some, others, strict=False):
        symbolic = isinstance(one, torch.SymInt) or isinstance(other, torch.SymInt)  # of numbers torch says it itself
        if symbolic and 1 not in (one, other):
            torch._check(one == other)  # type: ignore[no-untyped-call]


def _check_loss(input: Tensor, target: Tensor, *rest: Any, **options: Any) -> tuple[Any, ...]:
    """The sizes of rows, which there are classes for."""
    rows = (*input.shape[:1], *input.shape[2:]) if input.dim() > 1 else ()
    _agree(rows, target.shape)
    return rows


def _loss_shape(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: Any = -100
) -> Tensor:
    """An empty result of the loss; torch's own shape function, traced again, forgets that nothing is reduced (2.13)."""
    rows = _check_loss(self, target)
    return self.new_empty(rows if reduction == 0 else ())


LOSS = torch.ops.aten.nll_loss_nd.default
KEPT = {LOSS: _kept(LOSS, _loss_shape)}
"""What stands for ATen ops when a program is traced again."""


def _check_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **options: Any
) -> None:
    """``query`` [..., L, E], ``key`` [..., S, E], ``value`` [..., S, F]; the mask broadcasts to [..., L, S]."""
    _agree((query.shape[-1], key.shape[-2]), (key.shape[-1], value.shape[-2]))
    lead = -3 if options.get("enable_gqa") else -2
    _agree(query.shape[:lead], key.shape[:lead])
    _agree(query.shape[:lead], value.shape[:lead])
    if attn_mask is not None:
        _agree((key.shape[-2], *reversed(query.shape[:-1])), reversed(attn_mask.shape))


def _have_one_size(input: Tensor, dim: int, index: Tensor) -> bool:
    """Whether the axes of ``input`` and ``index`` but ``dim`` have one size: what a trace is asked holds for it."""
    others = (own for own in range(input.dim()) if own != dim % input.dim())
    return input.dim() == index.dim() and all(bool(input.shape[own] == index.shape[own]) for own in others)


def _gather(input: Tensor, dim: int, index: Tensor, **options: Any) -> Tensor:
    """``torch.gather``, whose axes of one size are one."""
    if input.dim():
        _have_one_size(input, dim, index)
    return torch.gather(input, dim, index, **options)


def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """``torch.take_along_dim``, which fixes the sizes that it compares; of one size, it is a ``torch.gather``."""
    if dim is not None and input.dim() and _have_one_size(input, dim, indices):
        return torch.gather(input, dim, indices)
    return torch.take_along_dim(input, indices, dim)


def _cov(input: Tensor, *, correction: int = 1, **weights: Tensor | None) -> Tensor:
    """``torch.cov``, which looks at the number that it divides by, to warn; of variables by observations."""
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    if rows.dim() > 2 or any(weight is not None for weight in weights.values()) or rows.shape[1] <= correction:
        return torch.cov(input, correction=correction, **weights)
    centred = rows - rows.mean(1, keepdim=True)
    return (centred @ centred.mT.conj() / (rows.shape[1] - correction)).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    """``torch.corrcoef``: products of centred rows of length 1, between -1 and 1."""
    if input.dim() != 2 or input.is_complex() or input.shape[0] == 1 or input.shape[1] < 2:
        return torch.corrcoef(input)
    centred = input - input.mean(1, keepdim=True)
    lengths = centred.square().sum(1).sqrt()
    return (centred @ centred.mT / lengths[:, None] / lengths).clamp(-1, 1)


def _gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """``gaussian_nll_loss``, which looks at variances to raise for negative ones."""
    if not isinstance(var, Tensor) or reduction not in ("none", "mean", "sum"):
        return gaussian_nll_loss(input, target, var, full, eps, reduction)
    if var.shape != input.shape and input.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    if var.dim() != input.dim() or sum(int(a != b) for a, b in zip(input.shape, var.shape, strict=True)) > 1:
        raise ValueError("var is of incorrect size")
    spread = var.clamp(min=eps)
    loss = 0.5 * (torch.log(spread) + (input - target) ** 2 / spread) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


_COMPARED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.cov: _cov,
    Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    Tensor.corrcoef: _corrcoef,
    gaussian_nll_loss: _gaussian_nll_loss,
    torch.gather: _gather,
    Tensor.gather: _gather,
    torch.take_along_dim: _take_along_dim,
    Tensor.take_along_dim: _take_along_dim,
}


def _is_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """In place of torch's own question, which looks at the mask's values; the answer only chooses a kernel."""
    return bool(is_causal)


@contextmanager
def kept_whole() -> Iterator[None]:
    """Within it, recurrent networks are single nodes, and the sizes of attention's operands agree.

    Distributions do not look at the values of their arguments, which they do to raise; nor do they under torch.compile.
    """
    asked, validated = transformer._detect_is_causal_mask, Distribution._validate_args
    transformer._detect_is_causal_mask = _is_causal
    Distribution.set_default_validate_args(False)
    try:
        with _KeptWhole():
            yield
    finally:
        transformer._detect_is_causal_mask = asked
        Distribution.set_default_validate_args(validated)


class _KeptWhole(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func is scaled_dot_product_attention:
            _check_attention(*args, **named)
        if func is nll_loss:
            _check_loss(*args, **named)
        if func in quotients.PADDING:
            quotients.fix(named["pad"] if "pad" in named else args[1])
        if func in _COMPARED:
            return _COMPARED[func](*args, **named)
        whole = _WHOLE.get(func)
        if whole is not None and not named and len(args) == 9 and isinstance(args[3], bool):  # not packed sequences
            return whole(*args)
        return func(*args, **named)
