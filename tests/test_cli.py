"""The command line: exit codes, messages, and what is (not) written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fusegen import compiler, doctor
from fusegen.cli import app
from fusegen.errors import MismatchError
from fusegen.verdict import check
from fusegen.verify import from_json
from tests.models import write
from tests.variants import ROOT, small

COLLAPSED = "conv_transpose_scale_mean"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs fusegen in an empty folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(a) for a in arguments])

    return invoke


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small(COLLAPSED, tmp_path)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_compile_writes_generated_by_default_and_sums_up(run: Any, model: Path) -> None:
    result = run("compile", model)
    assert result.exit_code == 0, result.output
    text = Path("generated", model.name).read_text()
    assert "class ModelNew" in text
    assert files(Path()) == [f"generated/{model.name}"]
    for part in ("graph nodes → kernels", "1 kernel", "bytes moved", "arithmetic", "roofline", "rewrites applied"):
        assert part in result.stdout, part


def test_compile_writes_where_it_is_told(run: Any, model: Path) -> None:
    assert run("compile", model, "-o", "a/b/c.py").exit_code == 0
    assert files(Path()) == ["a/b/c.py"]


def test_compile_is_deterministic(run: Any, model: Path) -> None:
    run("compile", model, "-o", "one.py")
    run("compile", model, "-o", "two.py")
    assert Path("one.py").read_bytes() == Path("two.py").read_bytes()


def test_json_summary_is_all_of_stdout(run: Any, model: Path) -> None:
    result = run("compile", model, "--json")
    found = json.loads(result.stdout)
    assert found["output"] == f"generated/{model.name}"
    assert found["target"] == "sm_90"
    assert len(found["kernels"]) == 1
    assert found["library_calls"] == []
    assert found["flops_after"] < found["flops_before"]
    assert found["bytes_after"] < found["bytes_before"]
    assert found["predicted_seconds"] >= found["roofline_seconds"] > 0
    assert any("mean" in rewrite["identity"] for rewrite in found["rewrites"])


def test_emit_ir_prints_the_traced_graph_and_writes_nothing(run: Any, model: Path) -> None:
    result = run("compile", model, "--emit", "ir")
    graph = from_json(result.stdout)
    assert any(node.op.kind == "conv" for node in graph.nodes)
    assert files(Path()) == []


def test_a_graph_description_compiles(run: Any, model: Path) -> None:
    Path("graph.json").write_text(run("compile", model, "--emit", "ir").stdout)
    result = run("compile", "graph.json", "--json")
    assert result.exit_code == 0, result.output
    assert Path("generated/graph.py").is_file()
    assert len(json.loads(result.stdout)["kernels"]) == 1


def test_eval_and_target_reach_the_compiler(run: Any, model: Path) -> None:
    found = json.loads(run("compile", model, "--eval", "--target", "sm_80", "--json").stdout)
    assert found["evaluation"] is True
    assert found["target"] == "sm_80"


MODEL = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}


def get_inputs():
    {inputs}


def get_init_inputs():
    return []
"""


def model_text(
    init: str = "pass", forward: str = "return torch.relu(x)", inputs: str = "return [torch.rand(2, 3)]"
) -> str:
    return MODEL.format(init=init, forward=forward, inputs=inputs)


BAD_MODELS = {
    "no Model": ("import torch\n\n\ndef get_inputs():\n    return []\n", ["Model"]),
    "no get_inputs": ("import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n", ["get_inputs"]),
    "constructor raises": (model_text(init="raise ValueError('no such size')"), ["no such size", "bad.py:8"]),
    "get_inputs raises": (model_text(inputs="return [undefined]"), ["undefined", "bad.py:15"]),
    "import raises": ("import no_such_module_at_all\n", ["no_such_module_at_all", "bad.py:1"]),
    "data-dependent branch": (
        model_text(forward="return x if x.sum() > 0 else -x"),
        ["control flow", "bad.py:11", "x if x.sum() > 0", "hint"],
    ),
    "data-dependent size": (model_text(forward="return x[x > 0]"), ["bad.py:11"]),
    "syntax error": ("import torch\n\nclass Model(:\n", ["syntax", "bad.py:3"]),
    "not a tensor": (model_text(inputs="return [['text']]"), ["input 0"]),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_bad_model_is_one_message_exit_2_and_no_file(run: Any, case: str) -> None:
    text, expected = BAD_MODELS[case]
    Path("bad.py").write_text(text)
    result = run("compile", "bad.py")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert [part for part in expected if part not in result.stderr] == [], result.stderr
    assert files(Path()) == ["bad.py"]


BAD_GRAPHS = {
    "not JSON": "{",
    "unknown field": '{"nodes": [], "outputs": [], "surprise": 1}',
    "unknown op": '{"nodes": [{"name": "a", "op": {"kind": "magic"}, "type": {"dtype": "float32", "shape": []}}],'
    ' "outputs": ["a"]}',
    "missing operand": '{"nodes": [{"name": "a", "op": {"kind": "pointwise", "fn": "relu"}, "inputs": ["b"],'
    ' "type": {"dtype": "float32", "shape": [2]}}], "outputs": ["a"]}',
    "missing output": '{"nodes": [], "outputs": ["a"]}',
    "code for a name": '{"nodes": [{"name": "a;b", "op": {"kind": "input", "position": 0},'
    ' "type": {"dtype": "float32", "shape": [2]}}], "outputs": ["a;b"]}',
}


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_a_malformed_graph_is_one_message_exit_2_and_no_file(run: Any, case: str) -> None:
    Path("graph.json").write_text(BAD_GRAPHS[case])
    result = run("compile", "graph.json")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: graph.json")
    assert "Traceback" not in result.stderr
    assert files(Path()) == ["graph.json"]


@pytest.mark.parametrize("command", ["compile", "explain", "check"])
def test_a_missing_model_is_a_message(run: Any, command: str) -> None:
    result = run(command, "nowhere.py")
    assert result.exit_code == 2
    assert "nowhere.py" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("out", ["file.txt/x.py", "folder", "model"])
def test_a_bad_output_path_is_found_before_tracing(
    run: Any, model: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("traced before the output was checked")

    monkeypatch.setattr(compiler, "compile_file", never)
    Path("file.txt").write_text("")
    Path("folder").mkdir()
    Path("model").symlink_to(model)
    before = model.read_bytes()
    result = run("compile", model, "-o", out)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert model.read_bytes() == before
    assert files(Path("folder")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_a_message(run: Any, model: Path) -> None:
    Path("closed").mkdir(mode=0o500)
    result = run("compile", model, "-o", "closed/out.py")
    assert result.exit_code == 2
    assert "permission" in result.stderr.lower()


def test_a_failed_compile_leaves_an_older_output_alone(run: Any) -> None:
    Path("bad.py").write_text(BAD_MODELS["data-dependent branch"][0])
    Path("out.py").write_text("older")
    assert run("compile", "bad.py", "-o", "out.py").exit_code == 2
    assert Path("out.py").read_text() == "older"


def test_an_unknown_target_is_an_error_and_no_file(run: Any, model: Path) -> None:
    result = run("compile", model, "--target", "sm_12345")
    assert result.exit_code in (2, 3)
    assert "sm_12345" in result.stderr
    assert files(Path()) == []


def test_a_failed_proof_exits_1_and_writes_nothing(run: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refute(*_: Any, **__: Any) -> None:
        raise MismatchError("the rewritten graph differs", node="mean")

    monkeypatch.setattr("fusegen.proof.prove", refute)
    result = run("compile", model)
    assert result.exit_code == 1
    assert "the rewritten graph differs" in result.stderr
    assert "mean" in result.stderr
    assert files(Path()) == []


def test_explain_shows_every_pass_and_each_refusal(run: Any, tmp_path: Path) -> None:
    result = run("explain", small("conv_relu_mean", tmp_path))
    assert result.exit_code == 0, result.output
    for part in ("after trace", "after algebra", "after fuse", "conv2d", "relu", "program"):
        assert part in result.stdout, part
    assert files(Path()) == []


def test_explain_says_why_a_rule_refuses(run: Any, tmp_path: Path) -> None:
    path = write(tmp_path, "return self.c(x).mean((2, 3))", "self.c = nn.Conv2d(3, 8, 9, padding=4)")
    printed = run("explain", path).stdout
    (line,) = (line for line in printed.splitlines() if "refused" in line and "spatial axes" in line)
    assert "81 distinct tap windows; a kernel keeps at most 64" in line


def test_explain_json(run: Any, model: Path) -> None:
    found = json.loads(run("explain", model, "--json").stdout)
    names = [stage["name"] for stage in found["stages"]]
    assert names[0] == "trace"
    assert names.index("simplify") < names.index("algebra") < names.index("fuse")
    assert any(stage["applied"] for stage in found["stages"])
    assert found["steps"][0]["kind"] == "kernel"


def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_check_without_a_gpu_claims_the_proof_alone(run: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    result = run("check", model)
    assert result.exit_code == 0, result.output
    assert "only the rewrite proof was run" in " ".join(result.stdout.split())
    found = json.loads(run("check", model, "--json").stdout)
    assert found["device"] is None
    assert found["sets"] == []
    assert found["proof"]["rounds"] > 0
    assert found["proof"]["worst"] < 1e-9
    assert files(Path()) == []


def test_a_failed_check_exits_1(run: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = check.CheckReport(
        model="m", proof=check.ProofResult(rounds=1, worst=0.0), device="GPU", torch="2", same_state=False
    )
    monkeypatch.setattr(check, "check", lambda *_: failed)
    result = run("check", model)
    assert result.exit_code == 1
    assert "FAILED" in result.stdout


def test_bench_without_a_gpu_exits_3(run: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    result = run("bench", model)
    assert result.exit_code == 3
    assert "GPU" in result.stderr
    assert "hint" in result.stderr


def test_doctor_reports_what_is_missing_and_exits_3(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_nvcc", lambda: None)
    result = run("doctor", "--json")
    assert result.exit_code == 3
    (nvcc,) = (f for f in json.loads(result.stdout)["findings"] if f["name"] == "nvcc")
    assert nvcc["status"] == "missing"
    assert "CUDA_HOME" in nvcc["hint"]


def test_doctor_is_content_without_a_gpu(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    for name in ("_nvcc", "_compiler", "_ninja"):
        monkeypatch.setattr(doctor, name, lambda name=name: doctor.Finding(name=name, value="1", status="ok"))
    result = run("doctor", "--json")
    found = {f["name"]: f for f in json.loads(result.stdout)["findings"]}
    assert found["GPU"]["status"] == "warning"
    assert result.exit_code == 0


def test_doctor_finds_a_cache_that_cannot_be_made(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "cache"))
    result = run("doctor", "--json")
    found = {f["name"]: f for f in json.loads(result.stdout)["findings"]}
    assert found["build cache"]["status"] == "missing"
    assert result.exit_code == 3


def test_doctor_finds_an_old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "torch", SimpleNamespace(__version__="2.9.1", version=SimpleNamespace(cuda="13.0")))
    assert doctor._torch().status == "missing"
    assert "2.10" in doctor._torch().hint


@pytest.mark.parametrize("arguments", [["compile"], ["nonsense"], ["compile", "x.py", "--nonsense"]])
def test_wrong_usage_exits_2(run: Any, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_version(run: Any) -> None:
    from fusegen import __version__

    assert run("--version").stdout.strip() == f"fusegen {__version__}"


def test_a_real_process_prints_json_and_nothing_else(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.py"
    done = subprocess.run(
        [sys.executable, "-m", "fusegen.cli", "compile", str(model), "-o", str(out), "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == str(out)
    assert done.stderr == ""
    assert out.is_file()


def test_a_real_process_fails_without_a_traceback(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(BAD_MODELS["constructor raises"][0])
    done = subprocess.run(
        [sys.executable, "-m", "fusegen.cli", "compile", str(bad)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "no such size" in done.stderr
    assert files(tmp_path) == ["bad.py"]
