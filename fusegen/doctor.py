"""What is installed, what is missing, and what to do about it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import torch

from fusegen.ir import Frozen

TORCH_FLOOR = (2, 10)
"""The first torch whose stable C ABI has what generated files call."""
CAPABILITY_FLOOR = (8, 0)

Status = Literal["ok", "warning", "missing"]


class Finding(Frozen):
    """One line of the diagnosis. ``missing`` means that generated files cannot run."""

    name: str
    value: str
    status: Status
    hint: str = ""


class Diagnosis(Frozen):
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return all(finding.status != "missing" for finding in self.findings)


def use_environment_tools() -> None:
    """Let subprocesses find the tools installed beside this Python (ninja), also when it is not activated."""
    scripts = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if scripts not in path.split(os.pathsep):
        os.environ["PATH"] = f"{path}{os.pathsep}{scripts}" if path else scripts


def cuda_home() -> str | None:
    """The toolkit that torch builds extensions with."""
    from torch.utils.cpp_extension import CUDA_HOME

    return str(CUDA_HOME) if CUDA_HOME else None


def find_nvcc() -> str | None:
    """The nvcc that generated files are built with, or None."""
    home = cuda_home()
    if home and (found := shutil.which("nvcc", path=str(Path(home) / "bin"))):
        return found
    return shutil.which("nvcc")


def _version(command: list[str], pattern: str) -> str | None:
    """What ``pattern`` captures in the output of ``command``; None when it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(pattern, done.stdout + done.stderr)
    return found.group(1) if done.returncode == 0 and found else None


def _torch() -> Finding:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < TORCH_FLOOR:
        need = ".".join(map(str, TORCH_FLOOR))
        return Finding(name="torch", value=torch.__version__, status="missing", hint=f"install torch {need} or newer")
    return Finding(name="torch", value=torch.__version__, status="ok")


def _cuda() -> Finding:
    if torch.version.cuda is None:
        hint = "compiling works; to run generated files, install a CUDA build of torch"
        return Finding(name="torch CUDA", value="none (CPU build)", status="warning", hint=hint)
    return Finding(name="torch CUDA", value=torch.version.cuda, status="ok")


def _nvcc() -> Finding:
    nvcc = find_nvcc()
    version = _version([nvcc, "--version"], r"release (\d+\.\d+)") if nvcc else None
    if version is None:
        hint = "install the CUDA toolkit for torch's CUDA version; put nvcc on PATH or set CUDA_HOME"
        return Finding(name="nvcc", value=nvcc or "not found", status="missing", hint=hint)
    if torch.version.cuda and torch.version.cuda.split(".")[0] != version.split(".")[0]:
        hint = f"torch was built with CUDA {torch.version.cuda}: use a toolkit of the same major version"
        return Finding(name="nvcc", value=f"{version} at {nvcc}", status="missing", hint=hint)
    return Finding(name="nvcc", value=f"{version} at {nvcc}", status="ok")


def _compiler() -> Finding:
    name = os.environ.get("CXX", "c++")
    path = shutil.which(name)
    version = _version([name, "--version"], r"(?m)^(.+)$") if path else None
    if version is None:
        return Finding(
            name="host compiler", value=f"{name} not found", status="missing", hint="install g++, or set CXX"
        )
    return Finding(name="host compiler", value=version, status="ok")


def _ninja() -> Finding:
    version = _version(["ninja", "--version"], r"(\S+)")
    if version is None:
        return Finding(name="ninja", value="not found", status="missing", hint="pip install ninja")
    return Finding(name="ninja", value=version, status="ok")


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        hint = "compile, explain and the rewrite proof work without one; check and bench run kernels on one"
        return Finding(name="GPU", value="none", status="warning", hint=hint)
    capability = torch.cuda.get_device_capability()
    value = f"{torch.cuda.get_device_name()} (sm_{capability[0]}{capability[1]})"
    if capability < CAPABILITY_FLOOR:
        return Finding(name="GPU", value=value, status="missing", hint="generated kernels need sm_80 or newer")
    return Finding(name="GPU", value=value, status="ok")


def build_cache() -> Path:
    """Where torch keeps the extensions it has built."""
    from torch.utils.cpp_extension import get_default_build_root

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())


def writable(directory: Path) -> bool:
    """True when files can be made in ``directory``, or in the folders it would be made in."""
    while not directory.exists():
        if directory == directory.parent:
            return False
        directory = directory.parent
    return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)


def _cache() -> Finding:
    cache = build_cache()
    if not writable(cache):
        hint = "set TORCH_EXTENSIONS_DIR to a folder that you can write"
        return Finding(name="build cache", value=f"{cache} is not writable", status="missing", hint=hint)
    return Finding(name="build cache", value=str(cache), status="ok")


def diagnose() -> Diagnosis:
    """Look for everything that generated files need."""
    return Diagnosis(findings=(_torch(), _cuda(), _nvcc(), _compiler(), _ninja(), _gpu(), _cache()))
