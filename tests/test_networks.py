"""Whole networks at small sizes: they compile, run in their kernels, and compute what the model does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusegen.compiler import compile_file
from tests.emitted import reference_from, simulated
from tests.variants import ROOT

SMALL = {
    "bert_layer": ("[torch.randint(0, 30, (3, 9)), torch.randint(0, 2, (3, 9))]", "[30, 12, 16, 4]"),
    "deep_mlp": ("[torch.rand(3, 24)]", "[24, [16, 16, 16], 8]"),
    "densenet_block": ("[torch.rand(2, 8, 9, 11)]", "[3, 8, 4]"),
    "frozen_backbone": ("[torch.rand(3, 3, 32, 32)]", "[5, 4]"),
    "gpt_block": ("[torch.rand(2, 7, 24)]", "[24, 3, 0.0, 0.0, 9]"),
    "gru_both_ways": ("[torch.rand(9, 3, 5), torch.rand(4, 3, 6)]", "[5, 6, 2]"),
    "inception": ("[torch.rand(2, 12, 7, 9)]", "[12, 8, 6, 8, 4, 8, 4]"),
    "lenet": ("[torch.rand(3, 1, 32, 32)]", "[10]"),
    "lstm_cells": ("[torch.rand(3, 6, 5)]", "[5, 8, 4]"),
    "lstm_classifier": ("[torch.rand(3, 7, 12)]", "[12, 8, 2, 5, 3]"),
    "lstm_stack": ("[torch.rand(3, 7, 5), torch.rand(2, 3, 6), torch.rand(2, 3, 6)]", "[5, 6, 2, 4]"),
    "mbconv_se": ("[torch.rand(2, 32, 9, 11)]", "[]"),
    "metric_losses": ("[torch.randn(6, 12), torch.randint(0, 9, (6,)), torch.randn(6, 9)]", "[12, 9, 4.0, 1.0]"),
    "mobilenet_v1": ("[torch.rand(2, 3, 224, 224)]", "[10, 3, 0.0625]"),
    "netvlad": ("[torch.rand(6, 5, 16)]", "[4, 16, 2]"),
    "padded_attention": (
        "[torch.randn(3, 5, 16), torch.randn(3, 7, 16), torch.arange(7)[None, :] >= torch.randint(2, 8, (3, 1))]",
        "[16, 4]",
    ),
    "relu_attention": ("[torch.rand(2, 7, 24)]", "[24, 3, 9]"),
    "resnet18": ("[torch.rand(2, 3, 64, 64)]", "[10]"),
    "rnn_loop": ("[torch.rand(6, 3, 5), torch.rand(3, 4)]", "[5, 4, 7]"),
    "scans": ("[torch.randn(5, 33), torch.randint(0, 2, (5, 33)).bool()]", "[1]"),
    "shuffle_unit": ("[torch.rand(2, 24, 7, 9)]", "[24, 48, 3]"),
    "state_space_scan": ("[torch.rand(2, 16, 2, 4)]", "[2, 16, 2, 4, 3, 8]"),
    "swin_stage": ("[torch.rand(2, 3, 56, 56)]", "[56, 12, 3, 7]"),
    "transformer": ("[torch.rand(2, 7, 24), torch.rand(2, 5, 24)]", "[24, 3, 1, 16, 9]"),
    "unet": ("[torch.rand(2, 3, 8, 16)]", "[3, 2, 4]"),
    "vit": ("[torch.rand(2, 3, 32, 32)]", "[32, 8, 5, 24, 2, 4, 48]"),
    "window_attention": ("[torch.rand(2, 14, 14, 12)]", "[12, 3, 7, 3]"),
}
"""Inputs and constructor arguments."""


def test_every_network_is_listed() -> None:
    assert sorted(SMALL) == sorted(path.stem for path in (ROOT / "benchmarks" / "networks").glob("*.py"))


@pytest.mark.parametrize("name", SMALL)
def test_a_network_runs_in_its_kernels(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_STRICT", "1")  # a call that the program does not cover raises
    inputs, arguments = SMALL[name]
    path = tmp_path / f"{name}.py"
    text = (ROOT / "benchmarks" / "networks" / path.name).read_text()
    path.write_text(
        f"{text}\n\ndef get_inputs():\n    return {inputs}\n\ndef get_init_inputs():\n    return {arguments}\n"
    )
    compiled = compile_file(path)
    file, generated = reference_from(path.read_text()), simulated(compiled)
    torch.manual_seed(0)
    reference = file.Model(*file.get_init_inputs())
    torch.manual_seed(0)  # for what no state_dict holds
    model = generated.ModelNew(*file.get_init_inputs())
    model.load_state_dict(reference.state_dict())
    values = file.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(model(*values), reference(*values), rtol=1e-3, atol=1e-4)
    assert len(generated.calls) >= len(compiled.program.kernels) > 0
