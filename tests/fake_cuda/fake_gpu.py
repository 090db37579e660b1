"""A fake machine with GPUs for tests in Python: what tests/fake_cuda/fake_gpu.h is for those in C++."""

import fcntl
import os
import shutil
import struct
import tempfile
from pathlib import Path

F_OFD_GETLK = 36


def is_held(path: Path) -> bool:
    """Whether the maker of a file in memory/ or contexts/ still has it (shared_directory.h)."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        lock = fcntl.fcntl(fd, F_OFD_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return struct.unpack("hhqqi4x", lock)[0] != fcntl.F_UNLCK
    finally:
        os.close(fd)


class FakeGpu:
    """The machine's directory, gone with close(). `library` is libwcache_fake_cuda.so; `config` has the keys of config.h:
    FakeGpu(library, {"devices": 2, "device.1.memory": 1 << 28, "attribute.103": 0})."""

    def __init__(self, library: str, config: dict | None = None):
        self.library = library
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="wcache-fake-cuda-", dir=parent))
        self.configure(config or {})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def configure(self, config: dict) -> None:
        """For processes whose first driver call is yet to come."""
        lines = (f"{key}={int(value) if isinstance(value, bool) else value}\n" for key, value in config.items())
        (self.directory / "config").write_text("".join(lines))

    @staticmethod
    def default_uuid(device: int) -> str:
        return f"fa4e0000-0000-4000-8000-0000000000{device:02x}"

    def environment(self, failures: str = "") -> dict:
        """os.environ with what makes a process one of this machine's; failures as in failures.h."""
        environment = dict(os.environ, WCACHE_LIBCUDA=self.library, WCACHE_FAKE_CUDA_DIR=str(self.directory))
        environment["WCACHE_FAKE_CUDA_FAIL"] = failures
        return environment

    def hold_copies(self) -> None:
        """Copies with registered memory wait from now on, in every process, until let_copies_go()."""
        (self.directory / "hold").touch()

    def let_copies_go(self) -> None:
        (self.directory / "hold").unlink(missing_ok=True)

    def contexts(self) -> list[tuple[int, int]]:
        """(device, pid) of each primary context that lives."""
        found = [path for path in (self.directory / "contexts").glob("d*") if is_held(path)]
        return [tuple(int(part) for part in path.name[1:].split("-")) for path in found]

    def _memory(self, device: int) -> list[Path]:
        return [path for path in (self.directory / "memory").glob(f"d{device}-*") if is_held(path)]

    def live_allocations(self, device: int) -> int:
        return len(self._memory(device))

    def used_bytes(self, device: int) -> int:
        """Of all processes together, without what contexts take."""
        return sum(path.stat().st_size for path in self._memory(device))

    def counters(self, pid: int) -> dict[str, int]:
        """Of a process that lives or has ended (counters.h); empty where it made no driver call."""
        try:
            data = (self.directory / "process" / str(pid)).read_bytes()
        except FileNotFoundError:
            return {}
        return {name.rstrip(b"\0").decode(): value for name, value in struct.iter_unpack("<56sQ", data)}

    def leaks(self, pid: int) -> dict[str, int]:
        """What that process has and has not given back."""
        return {name: value for name, value in self.counters(pid).items() if name.startswith("live.") and value}

    def errors(self) -> str:
        path = self.directory / "errors"
        return path.read_text() if path.exists() else ""
