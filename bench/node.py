"""What the comparisons share: the model's file on disk, a node that serves it, and what it is compared to. Each is
made when first asked for; close() takes all down again."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import machine

REPO = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(REPO / "tests" / "tools"), str(REPO / "tests" / "engines")]
import preload  # noqa: E402
import safetensors_writer  # noqa: E402
import values  # noqa: E402

TENSOR_NBYTES = 16 << 20
SMALL_FOLIO = 128 << 10  # what Linux's default read-ahead makes
WAIT = 30  # seconds, for a mount to be there or a process to be gone
PATIENCE = 600  # seconds, for one command's measurements


class Node:
    """`disk`: where the model is written; `nbytes`: of its tensors."""

    def __init__(self, programs, disk, nbytes):
        self.programs, self.nbytes = pathlib.Path(programs), nbytes
        self._stack = contextlib.ExitStack()
        self.work = self._directory(None)  # short: sockets lie below it
        self.disk = self._directory(disk)

    def _directory(self, parent):
        path = pathlib.Path(tempfile.mkdtemp(prefix="wcb-", dir=parent))
        self._stack.callback(shutil.rmtree, path)
        return path

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    @functools.cached_property
    def source(self):
        """The model on disk: one file, as engines know them."""
        path = self.disk / "model.safetensors"
        tensors = [safetensors_writer.Tensor(f"layers.{i:03}.weight", "F16", (TENSOR_NBYTES // 2048, 1024),
                                             functools.partial(values.random_bytes, TENSOR_NBYTES, i))
                   for i in range(self.nbytes // TENSOR_NBYTES)]
        safetensors_writer.write(path, tensors)
        with open(path, "rb") as file:  # what writing left in the page cache is not what reading leaves there
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return path

    @functools.cached_property
    def small_folios(self):
        """A copy on disk that the page cache holds in pieces of 128 KiB: it does so as it is written."""
        path = self.disk / "small-folios.safetensors"
        with open(self.source, "rb") as read, open(path, "xb", buffering=0) as write:
            while piece := read.read(SMALL_FOLIO):
                write.write(piece)
            os.fsync(write.fileno())
        return path

    @functools.cached_property
    def _preload(self):
        work = self.work / "node"  # where it finds what it should have taken down
        work.mkdir()
        return self._stack.enter_context(preload.Preload(work, self.source))

    @functools.cached_property
    def mounted(self):
        """The model's file as an engine finds it."""
        return pathlib.Path(self._preload.paths["target"]) / self.source.name

    @functools.cached_property
    def status(self):
        return json.loads(self._preload.wcache("status", "--json"))

    @property
    def pages(self):
        return self.status["groups"][0]["ranks"][0]["pages"]

    def require_passthrough(self):
        if not self.status["mount"]["passthrough"]:
            raise machine.Unavailable("the mount is without passthrough: " + self.status["mount"]["reason"])

    @functools.cached_property
    def tmpfs_file(self):
        """A copy in a tmpfs whose pages are of the kind that the daemon's memory has."""
        return machine.copy_into_tmpfs(self.source, self.tmpfs(self.pages) / self.source.name)

    def tmpfs(self, pages):
        directory = self.work / f"tmpfs-{pages}"
        if not directory.exists():
            machine.mount_tmpfs(directory, 2 * self.source.stat().st_size + (64 << 20), pages)
            self._stack.callback(unmount, directory)
        return directory

    @functools.cached_property
    def null_file(self):
        """The file of a libfuse file system that does nothing."""
        return self._serve("null", ["wcache-null-fs"], "file")

    @functools.cached_property
    def without_passthrough(self):
        """The model's file in a second mount of the same daemon's memory, answered by wcachefs itself: the second
        run directory has the daemon's socket by another name."""
        run_dir = self.work / "run2"
        run_dir.mkdir(mode=0o700)
        inside = self.mounted.relative_to(self._preload.mount)
        for socket in self._preload.run_dir.glob("wcache_*.sock"):
            os.link(socket, run_dir / socket.name)
        return self._serve("mnt2", ["wcachefs", "-f", "-o", f"run_dir={run_dir},no_passthrough"], inside)

    def _serve(self, name, command, inside):
        directory = self.work / name
        directory.mkdir()
        log = self._stack.enter_context(open(self.work / f"{name}.log", "wb"))
        process = subprocess.Popen([self.programs / command[0], *command[1:], directory], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, start_new_session=True)
        self._stack.callback(stop, process, directory)
        deadline = time.monotonic() + WAIT
        while not (directory / inside).exists():
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self.work / f"{name}.log").read_text()
                raise RuntimeError(f"{command[0]} does not serve {directory}: {said}")
            time.sleep(0.05)
        return directory / inside

    def timed(self, mode, rounds, *paths):
        """The lists of seconds of each path, and the bytes that its mapping has in 2 MiB entries."""
        found = json.loads(self.run("wcache-bench", mode, str(rounds), *paths))
        return [f["seconds"] for f in found], [f["huge_nbytes"] for f in found]

    def run(self, program, *arguments):
        return command(self.programs / program, *arguments)


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def stop(process, directory):
    if process.poll() is None:
        unmount(directory)
    try:
        process.wait(WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def unmount(directory):
    subprocess.run(["umount", "-l", directory], check=False)
