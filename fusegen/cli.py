"""The command line: each command calls one function and prints its report."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fusegen.errors import FusegenError

app = typer.Typer(
    name="fusegen",
    help="Compile a PyTorch model file to one Python file of fused CUDA kernels. Compiling runs the model's Python.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[Path, typer.Argument(help="A model file (Model, get_inputs, get_init_inputs) or a graph.json.")]
Target = Annotated[str, typer.Option(help="GPU architecture to plan for.")]
Eval = Annotated[bool, typer.Option("--eval", help="Compile the model in eval mode.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Generated = Annotated[
    Path | None, typer.Option("--generated", help="The generated file to run; by default it is compiled anew.")
]


class Emit(StrEnum):
    """What ``compile --emit`` can print."""

    IR = "ir"


@contextmanager
def reporting(model: Path | None = None) -> Iterator[None]:
    """Print a ``FusegenError`` as one message on stderr and exit with its code."""
    from fusegen.doctor import use_environment_tools

    use_environment_tools()
    try:
        yield
    except FusegenError as error:
        from fusegen.report import error_text

        typer.echo(error_text(error, model), err=True)
        raise typer.Exit(error.exit_code) from None


def _version(wanted: bool) -> None:
    if wanted:
        from fusegen import __version__

        typer.echo(f"fusegen {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Options of fusegen itself."""


@app.command()
def compile(
    model: Model,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Default: generated/<stem>.py.")] = None,
    target: Target = "sm_90",
    evaluation: Eval = False,
    json: Json = False,
    emit: Annotated[Emit | None, typer.Option(help="Print the traced graph as JSON instead of compiling.")] = None,
) -> None:
    """Compile MODEL, prove the rewrites and write the generated file."""
    with reporting(model):
        from fusegen import outputs, report
        from fusegen.compiler import compile_file
        from fusegen.emit import write_atomic
        from fusegen.ir import to_json

        if emit is Emit.IR:
            typer.echo(to_json(compile_file(model, target=target, evaluation=evaluation).program.before), nl=False)
            return
        path = out or outputs.default_output(model)
        outputs.require_writable(path, model)
        compiled = compile_file(model, target=target, evaluation=evaluation)
        write_atomic(path, compiled.source)
        summary = report.summarise(compiled, model, path)
        report.print_json(summary) if json else report.print_summary(summary)


@app.command()
def explain(model: Model, target: Target = "sm_90", evaluation: Eval = False, json: Json = False) -> None:
    """Show the graph after each pass, and why each rule or fusion did or did not apply."""
    with reporting(model):
        from fusegen import report
        from fusegen.compiler import compile_file

        compiled = compile_file(model, target=target, evaluation=evaluation)
        report.print_json(report.explanation(compiled)) if json else report.print_explanation(compiled)


@app.command()
def check(
    model: Model,
    generated: Generated = None,
    target: Target = "sm_90",
    evaluation: Eval = False,
    json: Json = False,
) -> None:
    """Prove the rewrites; with a GPU, hold the generated module to float64 on three input sets."""
    with reporting(model):
        from fusegen import outputs, report
        from fusegen.compiler import compile_file
        from fusegen.verdict.check import check as run_check

        compiled = compile_file(model, target=target, evaluation=evaluation)
        with outputs.generated_file(compiled, model, generated) as path:
            found = run_check(compiled, model, path)
        report.print_json(found) if json else report.print_check(found)
        if not found.passed:
            raise typer.Exit(1)


@app.command()
def bench(
    model: Model,
    generated: Generated = None,
    target: Target = "sm_90",
    evaluation: Eval = False,
    max_autotune: Annotated[bool, typer.Option("--max-autotune", help="Also torch.compile's max-autotune.")] = False,
    seconds: Annotated[float, typer.Option(help="About how long to time for.")] = 2.0,
    tune: Annotated[bool, typer.Option("--tune", help="First measure candidates; pin winners beside MODEL.")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Also write the JSON here.")] = None,
    json: Json = False,
) -> None:
    """Time eager, torch.compile and the generated module side by side against the roofline. Needs a GPU."""
    with reporting(model):
        from fusegen import outputs, report
        from fusegen.compiler import compile_file
        from fusegen.emit import write_atomic
        from fusegen.tuning import pins_path
        from fusegen.verdict.bench import bench as run_bench

        if out:
            outputs.require_writable(out, model)
        if tune:
            from fusegen.verdict.tune import tune as run_tune

            outputs.require_writable(pins_path(model), model)
            report.print_tune(run_tune(model, target=target, evaluation=evaluation, seconds=seconds))
        compiled = compile_file(model, target=target, evaluation=evaluation)
        with outputs.generated_file(compiled, model, generated) as path:
            found = run_bench(compiled, model, path, max_autotune=max_autotune, seconds=seconds)
        if out:
            write_atomic(out, found.model_dump_json(indent=1) + "\n")
        report.print_json(found) if json else report.print_bench(found)


@app.command()
def doctor(json: Json = False) -> None:
    """Say what is installed, what is missing and what to do about it."""
    with reporting():
        from fusegen import report
        from fusegen.doctor import diagnose

        found = diagnose()
        report.print_json(found) if json else report.print_doctor(found)
        if not found.healthy:
            raise typer.Exit(3)


def main() -> None:
    """Entry point."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's, when NumPy is not installed
    app(prog_name="fusegen")


if __name__ == "__main__":
    main()
