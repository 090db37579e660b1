"""Runs `wcache preload` for a test, and holds it to leaving nothing behind."""

import ctypes
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import threading
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
READY_SECONDS = 120
STOP_SECONDS = 30
GONE_SECONDS = 5  # what a stopped node may take to be gone after its launcher


class Failed(Exception):
    """What went wrong, for a person."""


def _prctl(option, value):
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans():
    """Makes this process the parent of every descendant whose own parent dies, so that none escapes unseen."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def children():
    """Processes whose parent is this one, zombies reaped and not counted: {pid: command}."""
    me, out = os.getpid(), {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) != me:
                continue
            pid = int(path.parent.name)
            if fields[0] == "Z":
                os.waitpid(pid, os.WNOHANG)
                continue
            out[pid] = (path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (OSError, IndexError):
            continue
    return out


def kill_children():
    """Ends what a failed test left running."""
    for _ in range(50):
        left = children()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.1)


def mounts_below(directory):
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as info:
        points = [line.split()[4].encode().decode("unicode_escape") for line in info]
    return [p for p in points if p == str(directory) or p.startswith(f"{directory}/")]


class Preload:
    """A node of its own below `work`: run directory, mount and digest cache. As a context it is ready on entry, and
    gone without a trace on exit; `paths` is {role: mounted directory}."""

    def __init__(self, work, model, *options, roles=("target",)):
        self.work = pathlib.Path(work)
        self.run_dir, self.mount = self.work / "run", self.work / "mnt"
        self.log_path = self.work / "preload.log"
        self.model, self.options, self.roles = str(model), options, set(roles)
        self.paths, self.fingerprints = {}, {}
        self.env = {**os.environ, "WCACHE_CACHE_DIR": str(self.work / "cache")}

    @staticmethod
    def program():
        directory = os.environ.get("WCACHE_BIN_DIR")
        path = shutil.which("wcache", path=directory) if directory else None
        if not path:
            raise Failed(f"no program wcache in WCACHE_BIN_DIR={directory}")
        return path

    def wcache(self, *arguments):
        """Runs another command of the same node; returns its standard output."""
        done = subprocess.run([self.program(), *map(str, arguments), "--run-dir", str(self.run_dir)], env=self.env,
                              capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise Failed(f"wcache {arguments[0]} ended with {done.returncode}: {done.stderr.strip() or done.stdout}")
        return done.stdout

    def __enter__(self):
        self.before = set(children())  # other nodes of this test
        self.log = open(self.log_path, "wb")
        command = [self.program(), "preload", self.model, "--run-dir", str(self.run_dir), "--mount", str(self.mount),
                   "--device", "host", *self.options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
                                        env=self.env, text=True, start_new_session=True,
                                        # A test that is killed for its time takes its node with it.
                                        preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
        try:
            self._await_ready()
        except BaseException:
            self._stop()
            self._clear()
            raise
        return self

    def __exit__(self, kind, *_):
        code = self._stop()
        left = self._left_behind()
        if left:
            self._clear()
        if kind is None and code != 0:
            raise Failed(f"preload ended with {code} after SIGTERM: {self._log()}")
        if kind is None and left:
            raise Failed(f"left behind after preload's end: {left}")

    def _await_ready(self):
        lines = queue.Queue()

        def read():
            with self.process.stdout as out:
                for line in out:
                    lines.put(line.rstrip("\n"))
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + READY_SECONDS
        while set(self.paths) != self.roles:
            try:
                line = lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failed(f"ready after {READY_SECONDS} s: only {list(self.paths)}: {self._log()}") from None
            if line is None:
                raise Failed(f"preload ended with {self.process.wait()} before it was ready: {self._log()}")
            word, role, fingerprint, path = (line.split(" ", 3) + [""] * 4)[:4]
            if word != "READY" or role not in self.roles or not os.path.isdir(path):
                raise Failed(f"preload printed {line!r}")
            self.paths[role], self.fingerprints[role] = path, fingerprint

    def _stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"a kill, {STOP_SECONDS} s"
        finally:
            self.log.close()

    def _left_behind(self):
        """What is still there a moment after the end: processes, mounts, sockets."""
        deadline = time.monotonic() + GONE_SECONDS
        while True:
            sockets = [str(p) for p in self.run_dir.rglob("*.sock")] if self.run_dir.exists() else []
            left = [command for pid, command in children().items() if pid not in self.before]
            left += [*mounts_below(self.work), *sockets]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)

    def _clear(self):
        kill_children()
        for mount in sorted(mounts_below(self.work), reverse=True):
            tool = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*tool, mount], check=False)

    def _log(self):
        return self.log_path.read_text(errors="replace").strip()[-2000:] or "it wrote nothing on standard error"
