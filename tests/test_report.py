"""What is printed, from reports made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusegen import report
from fusegen.doctor import Diagnosis, Finding
from fusegen.errors import TraceError
from fusegen.verdict.bench import BenchReport, KernelTime
from fusegen.verdict.timing import Timing, summarise


def timing(ms: float) -> Timing:
    return Timing(median=ms, low=ms * 0.9, high=ms * 1.1, samples=20)


@pytest.fixture
def bench_report() -> BenchReport:
    return BenchReport(
        model="m",
        inputs=("float32[2, 3]",),
        gpu="GPU",
        capability="sm_90",
        torch="2.10",
        cuda="13.0",
        tf32_convolutions=True,
        tf32_matmul=False,
        rounds=20,
        ms={"eager": timing(6.0), "generated": timing(0.25), "roofline": timing(0.2)},
        failed={"torch.compile": "RuntimeError: [no]"},
        read_gbps=4400.0,
        copy_gbps=4200.0,
        compulsory_read_bytes=10**9,
        compulsory_write_bytes=64,
        kernels=(KernelTime(name="k0_window_sum", ms=timing(0.25), bytes=10**9, flops=10**9),),
        host_us={"eager": 90.0, "generated": 20.0},
        first_use=None,
    )


def test_bench_ratios(bench_report: BenchReport) -> None:
    assert bench_report.roofline_fraction == pytest.approx(0.8)
    assert bench_report.speedups == {"eager": pytest.approx(24.0)}
    assert bench_report.kernels[0].gigabytes_per_second == pytest.approx(4000.0)
    dumped = json.loads(bench_report.model_dump_json())
    assert dumped["speedups"]["eager"] == pytest.approx(24.0)


def test_bench_table(bench_report: BenchReport, capsys: pytest.CaptureFixture[str]) -> None:
    report.print_bench(bench_report)
    printed = capsys.readouterr().out
    assert "24x faster" in printed
    assert "80% of it" in printed
    assert "[no]" in printed
    assert "first use" not in printed


def test_timing_summary() -> None:
    found = summarise([float(n) for n in range(100, -1, -1)])
    assert (found.low, found.median, found.high, found.samples) == (10.0, 50.0, 90.0, 101)
    assert summarise([3.0]) == Timing(median=3.0, low=3.0, high=3.0, samples=1)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1073741824, "1.07 GB"), (2.5e12, "2.5 TB"), (34_000, "34 kB")]
)
def test_quantity(value: float, text: str) -> None:
    assert report.quantity(value, "B") == text


def test_duration() -> None:
    assert report.duration(0.00597) == "5.97 ms"
    assert report.duration(22.1e-6) == "22.1 µs"


def test_error_shows_node_source_line_and_hint(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("one\n    if x.sum() > 0:\nthree\n")
    error = TraceError("control flow depends on values", node="sum", source="model.py:2", hint="use torch.where")
    text = report.error_text(error, model)
    assert text.splitlines() == [
        "error: control flow depends on values",
        "  node: sum",
        "  at:   model.py:2",
        "        if x.sum() > 0:",
        "  hint: use torch.where",
    ]


def test_error_without_place_is_one_line() -> None:
    assert report.error_text(TraceError("no"), None) == "error: no"


def test_doctor_table_shows_hints(capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis = Diagnosis(findings=(Finding(name="nvcc", value="not found", status="missing", hint="install it"),))
    report.print_doctor(diagnosis)
    printed = capsys.readouterr().out
    assert "missing" in printed
    assert "install it" in printed
    assert not diagnosis.healthy
