"""Bandwidth probes: a kernel that only moves bytes, built with nvcc and called through ctypes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from fusegen.doctor import find_nvcc
from fusegen.errors import ToolchainError

SOURCE = Path(__file__).parent.parent / "templates" / "probes.cu"


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    nvcc = find_nvcc()
    if nvcc is None:
        raise ToolchainError("nvcc is not installed", hint="`fusegen doctor` says what is missing")
    major, minor = torch.cuda.get_device_capability()
    out = Path(tempfile.mkdtemp(prefix="fusegen_probes_")) / "probes.so"
    arch = f"arch=compute_{major}{minor},code=sm_{major}{minor}"
    command = [nvcc, "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-gencode", arch]
    done = subprocess.run([*command, "-o", str(out), str(SOURCE)], capture_output=True, text=True)
    if done.returncode:
        raise ToolchainError(f"nvcc could not build the bandwidth probe: {done.stderr.strip()[:400]}")
    library = ctypes.CDLL(str(out))
    library.fusegen_probe_launch.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    library.fusegen_probe_launch.restype = ctypes.c_int
    return library


class Probe:
    """Moves a fixed number of bytes on each call, on the current stream."""

    def __init__(self, read_bytes: int, write_bytes: int = 0) -> None:
        self.read_bytes, self.write_bytes = (-(-n // 16) * 16 for n in (read_bytes, write_bytes))
        self.source = torch.zeros(max(self.read_bytes, 16), dtype=torch.uint8, device="cuda")
        self.sink = torch.zeros(max(self.write_bytes, 16), dtype=torch.uint8, device="cuda")
        self.launch = _library().fusegen_probe_launch

    @property
    def bytes(self) -> int:
        """Bytes moved: read plus written."""
        return self.read_bytes + self.write_bytes

    def __call__(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        source, sink = self.source.data_ptr(), self.sink.data_ptr()
        status = self.launch(source, self.read_bytes, sink, self.write_bytes, stream)
        if status:
            raise ToolchainError(f"the bandwidth probe failed to launch (CUDA error {status})")
