"""What the tests of the commands share: a node of their own (run directory, mount path, digest cache) and real processes.

Everything is told apart by the node's own temporary directory: processes have it in their command lines, mounts lie
below it. Nothing else on the machine is looked at or touched.
"""

import filecmp
import importlib.util
import json
import os
import pathlib
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
TOOLS = SOURCE / "tests" / "tools"
BIN = pathlib.Path(os.environ.get("WCACHE_BIN_DIR", SOURCE / "build" / "dev" / "bin"))
WAIT = 60  # seconds, for anything that should take a moment; machines that test are busy


def make_checkpoint(out, *options):
    """Makes a checkpoint and gives its directory."""
    done = subprocess.run([sys.executable, TOOLS / "make_checkpoint.py", out, *map(str, options)], check=True,
                          stdout=subprocess.PIPE, text=True)
    return pathlib.Path(done.stdout.strip())


def make_large(out):
    """A checkpoint that takes a moment to fill: a gibibyte, most of it a hole."""
    model = make_checkpoint(out, "--kind", "opaque")
    os.truncate(model / "pytorch_model.bin", 1 << 30)
    return model


def eventually(condition, what, seconds=WAIT):
    """Waits until `condition` gives something true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.02)


class Preload:
    """A running `wcache preload`."""

    def __init__(self, node, model, *options, prefix=()):
        self.errors_path = node.root / f"stderr-{len(node.preloads)}"
        command = [*prefix, BIN / "wcache", "preload", model, "--run-dir", node.run_dir, *map(str, options)]
        with open(self.errors_path, "wb") as errors:
            self.process = subprocess.Popen(command, env=node.environment, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        self.pid = self.process.pid
        self.output = b""

    @property
    def errors(self):
        return self.errors_path.read_text(errors="replace")

    def read_output(self, seconds):
        """What standard output has, waiting for more; False at its end."""
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            return True
        piece = os.read(self.process.stdout.fileno(), 65536)
        self.output += piece
        return bool(piece)

    def ready(self, seconds=WAIT):
        """Waits for the READY line; its role, fingerprint and path."""
        end = time.monotonic() + seconds
        while b"\n" not in self.output:
            if not self.read_output(0.1) or time.monotonic() > end:
                raise AssertionError(f"no READY line; exit code {self.process.poll()}; standard error:\n{self.errors}")
        word, role, fingerprint, path = self.output.decode().splitlines()[0].split(" ", 3)
        assert word == "READY", self.output
        return role, fingerprint, pathlib.Path(path)

    def ready_groups(self, count, seconds=WAIT):
        """Waits for so many READY lines; fingerprint and path of each role."""
        end = time.monotonic() + seconds
        while self.output.count(b"\n") < count:
            if not self.read_output(0.1) or time.monotonic() > end:
                raise AssertionError(f"{self.output} only; exit code {self.process.poll()}; standard error:\n{self.errors}")
        lines = [line.split(" ", 3) for line in self.output.decode().splitlines()]
        assert all(line[0] == "READY" for line in lines), self.output
        return {role: (fingerprint, pathlib.Path(path)) for _, role, fingerprint, path in lines}

    def stop(self, number=signal.SIGINT, seconds=WAIT):
        """Sends a signal and gives the exit code."""
        self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds=WAIT):
        end = time.monotonic() + seconds
        while self.read_output(0.1):
            if time.monotonic() > end:
                raise AssertionError(f"preload does not end; standard error:\n{self.errors}")
        return self.process.wait(timeout=seconds)


class Node:
    """A run directory, a mount path and a digest cache below one temporary directory."""

    def __init__(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="wct-"))
        self.run_dir = self.root / "run"
        self.mount = self.root / "m" / "wcache"
        self.environment = dict(os.environ, WCACHE_CACHE_DIR=str(self.root / "cache"))
        self.environment.pop("WCACHE_RUN_DIR", None)
        self.environment["WCACHE_LIBCUDA"] = "/no-driver-in-tests/libcuda.so.1"  # what a machine has is of no concern
        self.preloads = []

    def preload(self, model, *options, mount=True, prefix=()):
        """`prefix`: words before the command, of a program that becomes it."""
        place = ["--mount", self.mount] if mount is True else ["--no-mount"] if mount is False else mount
        running = Preload(self, model, *place, *options, prefix=prefix)
        self.preloads.append(running)
        return running

    def run(self, *words, seconds=WAIT):
        return subprocess.run([BIN / "wcache", words[0], "--run-dir", self.run_dir, *map(str, words[1:])],
                              env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=seconds)

    def status(self):
        return json.loads(self.run("status", "--json").stdout)

    def group(self):
        """The only group."""
        groups = self.status()["groups"]
        assert len(groups) == 1, groups
        return groups[0]

    def processes(self):
        """(pid, command line) of every process of this node."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except (OSError, IndexError):
                continue
            mine = any(str(self.root).encode() in word for word in words)
            if mine and state != "Z" and pathlib.Path(words[0].decode()).name.startswith("wcache"):
                found.append((int(entry.name), b" ".join(words).decode(errors="replace")))
        return found

    def pid_of(self, program):
        pids = [pid for pid, line in self.processes() if pathlib.Path(line.split(" ")[0]).name == program]
        assert len(pids) == 1, (program, self.processes())
        return pids[0]

    def mounts(self):
        lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if str(self.root) in line]

    def leftovers(self, logs=False):
        """What is there of the node that should not be once every launcher has ended. `logs`: a failed daemon's log is
        meant to stay."""
        files = [p for p in self.run_dir.rglob("*")] if self.run_dir.exists() else []
        if logs:
            files = [p for p in files if p.suffix != ".log" and p.name != "made-by-launcher"]
        elif self.run_dir.exists():
            files.append(self.run_dir)
        return [*self.processes(), *self.mounts(), *files, *([self.mount.parent] if self.mount.parent.exists() else [])]

    def clean_up(self):
        for preload in self.preloads:
            if preload.process.poll() is None:
                preload.process.send_signal(signal.SIGTERM)
        for preload in self.preloads:
            try:
                preload.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                preload.process.kill()
                preload.process.wait()
            preload.process.stdout.close()
        for pid, _ in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for line in self.mounts():
            path = line.split(" ")[4].encode().decode("unicode_escape")
            subprocess.run(["umount", "-l", path], check=False)
        shutil.rmtree(self.root, ignore_errors=True)


class NodeTest(unittest.TestCase):
    """A test with a node, of which nothing may be left in the end."""

    def setUp(self):
        self.node = Node()
        self.addCleanup(self.node.clean_up)

    def assert_nothing_left(self, logs=False):
        eventually(lambda: not self.node.leftovers(logs), lambda: self.node.leftovers(logs), 10)

    def assert_same_files(self, source, entry):
        """Every file of the checkpoint is in the entry, byte for byte, and nothing else but .wcache."""
        def names(top):
            return sorted(str(p.relative_to(top)) for p in top.rglob("*") if p.is_file())
        there = [name for name in names(entry) if not name.startswith(".wcache/")]
        self.assertEqual(there, names(source))
        for name in there:
            self.assertTrue(filecmp.cmp(source / name, entry / name, shallow=False), name)


class SharedModel(NodeTest):
    """Tests that read one small checkpoint, made once."""

    options = ("--kind", "demo", "--size", "8M", "--shards", 2)

    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(tempfile.mkdtemp(prefix="wcm-"))
        cls.addClassCleanup(shutil.rmtree, cls.models, ignore_errors=True)
        cls.model = make_checkpoint(cls.models / "first", *cls.options)


def tensors_of(path):
    """name -> (dtype, shape, bytes) of a safetensors file, by the format's own words."""
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    rows = {name: row for name, row in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
    return {name: (row["dtype"], tuple(row["shape"]), data[8 + size + row["data_offsets"][0]:8 + size + row["data_offsets"][1]])
            for name, row in rows.items()}


def tensors_of_all(model):
    """The same of all files of a checkpoint."""
    return {name: row for path in model.glob("*.safetensors") for name, row in tensors_of(path).items()}


def bytes_of(path):
    """name -> bytes of a safetensors file."""
    return {name: data for name, (_, _, data) in tensors_of(path).items()}


def needs(*modules):
    """Marks a test that cannot do without these modules: main() has a run of its own for such tests, which counts as skipped
    where they are missing."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]

    def mark(test):
        test.needs = modules
        return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")(test)
    return mark


def _cases(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _cases(part)
        else:
            yield part


class _Some(unittest.TestLoader):
    """Tests that need modules, or all others."""

    def __init__(self, with_modules):
        super().__init__()
        self.with_modules = with_modules

    def loadTestsFromModule(self, module, *args, **options):  # noqa: N802
        chosen = unittest.TestSuite()
        for case in _cases(super().loadTestsFromModule(module, *args, **options)):
            if hasattr(getattr(case, case._testMethodName), "needs") == self.with_modules:
                chosen.addTest(case)
        return chosen


def main():
    """unittest.main, with 77 where every test was skipped. With --with-modules the tests that are marked by needs, with
    --without-modules all others."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("skipped: /dev/fuse cannot be opened")
        sys.exit(77)
    loader = unittest.defaultTestLoader
    for word, with_modules in (("--with-modules", True), ("--without-modules", False)):
        if word in sys.argv:
            sys.argv.remove(word)
            loader = _Some(with_modules)
    program = unittest.main(exit=False, verbosity=2, testLoader=loader)
    result = program.result
    if result.testsRun and len(result.skipped) == result.testsRun:
        sys.exit(77)
    sys.exit(not result.wasSuccessful())
