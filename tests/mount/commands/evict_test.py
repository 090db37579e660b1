#!/usr/bin/env python3
"""evict: what holds an entry, and what goes when nothing does."""

import mmap
import os
import signal
import subprocess
import sys

import harness
from harness import SharedModel, eventually

SHARD = "model-00001-of-00002.safetensors"

# A process that maps the file named and closes it, says so, and waits for its standard input to end.
MAPPER = """
import mmap, sys
with open(sys.argv[1], "rb") as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


class Evict(SharedModel):
    def setUp(self):
        super().setUp()
        self.preload = self.node.preload(self.model)
        _, self.fingerprint, self.path = self.preload.ready()

    def assert_busy(self, pid):
        done = self.node.run("evict", self.fingerprint)
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn(str(pid), done.stderr)
        self.assertTrue((self.path / SHARD).exists())
        self.assertIn(pid, [holder["pid"] for holder in self.node.group()["holders"]])

    def assert_evicted(self):
        done = self.node.run("evict", self.fingerprint)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(self.path.exists())
        self.assertEqual(self.preload.wait(), 0)  # its last group
        self.assertIn("was evicted", self.preload.errors)
        self.assert_nothing_left()

    def test_nothing_holds_it(self):
        self.assert_evicted()
        self.assertEqual(self.node.run("evict", self.fingerprint).returncode, 3)

    def test_an_open_file_holds_it(self):
        with open(self.path / SHARD, "rb") as file:
            file.read(16)
            self.assert_busy(os.getpid())
        self.assert_evicted()

    def test_a_mapping_without_an_open_file_holds_it(self):
        holder = subprocess.Popen([sys.executable, "-c", MAPPER, self.path / SHARD], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline(), b"mapped\n")
        self.assert_busy(holder.pid)
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
        self.assert_evicted()

    def test_an_attached_client_holds_it(self):
        socket = self.node.group()["ranks"][0]["socket"]
        holder = subprocess.Popen([harness.BIN.parent / "tests" / "hold_attached", socket], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        self.addCleanup(holder.kill)
        self.assertRegex(holder.stdout.readline(), b"attached to [0-9]+ files")
        self.assert_busy(holder.pid)
        self.assertIn("hold_attached", self.node.run("status").stdout)
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
        self.assert_evicted()

    def test_an_entry_whose_daemon_died(self):
        os.kill(self.node.pid_of("wcached"), signal.SIGKILL)
        eventually(lambda: self.node.group()["state"] == "orphaned", "orphaned")
        with open(self.path / SHARD, "rb"):
            self.assertEqual(self.node.run("evict", self.fingerprint).returncode, 6)
        with open(self.path / SHARD, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        done = self.node.run("evict", self.fingerprint)
        self.assertEqual(done.returncode, 6)
        self.assertIn(str(os.getpid()), done.stderr)
        mapping.close()
        self.assertEqual(self.node.run("evict", self.fingerprint).returncode, 0)
        eventually(lambda: not self.path.exists(), "the directory is gone")
        self.assertEqual(self.preload.wait(), 0)
        self.assert_nothing_left(logs=True)

    def test_by_every_name_it_has(self):
        self.assertEqual(self.node.run("evict", "nobody").returncode, 3)
        self.assertEqual(self.node.run("evict", "first", "--role", "draft0").returncode, 3)
        self.assertEqual(self.node.run("evict", "first", "--role", "nonsense").returncode, 2)
        self.assertEqual(self.node.run("evict", self.node.mount / "target" / "by-name" / "first").returncode, 0)
        self.assertEqual(self.preload.wait(), 0)


if __name__ == "__main__":
    harness.main()
