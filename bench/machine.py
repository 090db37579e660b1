"""The machine under measurement: what it is, and its memory and mounts."""

import ctypes
import os
import pathlib
import platform
import subprocess

CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18


class Unavailable(Exception):
    """A comparison that cannot be made here; the text says why."""


def hide_mounts():
    """Gives this process a mount namespace of its own: what it mounts is nobody else's, and goes with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "a mount namespace of one's own")


def mount_tmpfs(directory, nbytes, pages):
    """A tmpfs of the pages that the daemon's memory has: "huge" or "small"."""
    directory.mkdir()
    huge = "within_size" if pages == "huge" else "never"
    for more in (",noswap", ""):  # noswap is of Linux 6.4
        options = f"size={nbytes},mode=0700,huge={huge}{more}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "wcache-bench", directory], capture_output=True,
                              text=True, check=False)
        if not done.returncode:
            return directory
    raise Unavailable(f"cannot mount a tmpfs: {done.stderr.strip()}")


def copy_into_tmpfs(source, target):
    """The size comes first: huge=within_size looks at it."""
    nbytes = source.stat().st_size
    with open(source, "rb") as read, open(target, "xb") as write:
        os.truncate(write.fileno(), nbytes)
        os.posix_fallocate(write.fileno(), 0, nbytes)
        while block := read.read(4 << 20):
            write.write(block)
    return target


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("1\n", encoding="ascii")


def file_system_type(path):
    return subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "-T", path], capture_output=True, text=True,
                          check=True).stdout.strip()


def read_ahead_kib(path):
    device = os.stat(path).st_dev
    bdi = pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}")
    return int((bdi / "read_ahead_kb").read_text()) if bdi.exists() else None


def available_nbytes():
    return int(_field("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def describe(directory):
    return {"kernel": platform.release(), "processors": os.cpu_count(),
            "processor": _field("/proc/cpuinfo", "model name"),
            "memory_nbytes": int(_field("/proc/meminfo", "MemTotal").split()[0]) * 1024,
            "disk": file_system_type(directory), "read_ahead_kib": read_ahead_kib(directory),
            "real_time": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
            "system": _field("/etc/os-release", "PRETTY_NAME", "=").strip('"')}


def _field(path, key, separator=":"):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(separator)
            if name.strip() == key:
                return value.strip()
    return "0"
