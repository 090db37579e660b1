#!/usr/bin/env python3
"""A served entry from outside: its attributes, its key, its memory, and what a source that changes does to others."""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import harness
from harness import SOURCE, SharedModel, eventually, make_checkpoint

MAPPERS = 8
# Beyond the entry's own bytes: the manifest, the tail of each file's last page, and what the processes of the node
# take for themselves in shared memory. The rest of the machine lives on meanwhile, so this is generous.
FIXED_OVERHEAD = 24 << 20


def python_with(module):
    """A Python that has this module: this one, or the distribution's, whose packages scripts/setup installs."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0:
            return python
    return None


def shared_memory():
    """Bytes of tmpfs and memfd on this machine."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/meminfo has no Shmem")


class Attributes(SharedModel):
    def attributes(self, path):
        """What getfattr shows: {name: value}."""
        text = subprocess.run(["getfattr", "--absolute-names", "-d", "-m", "user.wcache", path], check=True,
                              capture_output=True, text=True).stdout
        rows = [line.split("=", 1) for line in text.splitlines() if "=" in line]
        return {name.removeprefix("user.wcache."): value.strip('"') for name, value in rows}

    @unittest.skipUnless(shutil.which("getfattr"), "getfattr is not installed")
    def test_getfattr_shows_the_table_of_each_kind_of_node(self):
        _, fingerprint, path = self.node.preload(self.model, "--name", "named").ready()
        root = self.attributes(self.node.mount)
        self.assertEqual(set(root), {"version", "protocol"})
        entry = self.attributes(path)
        self.assertEqual((entry["role"], entry["name"], entry["fingerprint"], entry["state"], entry["layout"]),
                         ("target", "named", fingerprint, "ready", "checkpoint"))
        self.assertEqual(entry["source"], str(self.model))
        self.assertEqual(int(entry["nbytes"]), sum(p.stat().st_size for p in self.model.rglob("*") if p.is_file()))
        weights = sorted(path.glob("*.safetensors"))[0]
        file = self.attributes(weights)
        self.assertEqual((file["tier"], file["device_uuid"], file["ipc_kind"], file["rank"]), ("host", "HOST-0", "file", "0"))
        self.assertEqual(int(file["nbytes"]), weights.stat().st_size)
        name = sorted(os.listdir(path / ".wcache" / "tensors"))[0]
        tensor = self.attributes(path / ".wcache" / "tensors" / name)
        self.assertEqual(int(tensor["nbytes"]), (path / ".wcache" / "tensors" / name).stat().st_size)
        for key in ("dtype", "shape", "digest", "file", "offset"):
            self.assertIn(key, tensor)
        missing = subprocess.run(["getfattr", "-n", "user.wcache.nothing", weights], capture_output=True, text=True)
        self.assertIn("No such attribute", missing.stderr)

    @unittest.skipUnless(python_with("xxhash"), "python3-xxhash is not installed")
    def test_the_fingerprint_is_recomputed_from_the_mounted_files(self):
        _, _, path = self.node.preload(self.model).ready()
        tool = SOURCE / "tests" / "tools" / "recompute_key.py"
        done = subprocess.run([python_with("xxhash"), tool, path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class SingleCopy(harness.NodeTest):
    def test_eight_engines_that_map_an_entry_share_its_bytes(self):
        models = pathlib.Path(self.node.root) / "models"
        models.mkdir()
        model = make_checkpoint(models / "m", "--kind", "demo", "--size", "256M", "--shards", 2)
        nbytes = sum(p.stat().st_size for p in model.rglob("*") if p.is_file())
        before = shared_memory()
        _, _, path = self.node.preload(model).ready()
        if not self.node.status()["mount"]["passthrough"]:
            self.skipTest("one copy needs FUSE passthrough")
        mappers = [subprocess.Popen([sys.executable, "-c", MAP_AND_WAIT, path], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE) for _ in range(MAPPERS)]
        try:
            for mapper in mappers:
                self.assertEqual(mapper.stdout.readline(), b"touched\n")
            self.assertEqual(self.cached_by_fuse(path), 0, "the page cache holds a second copy")
            taken = shared_memory() - before
        finally:
            for mapper in mappers:
                mapper.communicate()
        self.assertGreaterEqual(taken, nbytes * 0.99)
        self.assertLessEqual(taken, nbytes * 1.01 + FIXED_OVERHEAD)

    def cached_by_fuse(self, path):
        """Kilobytes of the entry's files that a process with only private mappings of them would own itself."""
        script = MAP_AND_WAIT.replace("sys.stdin.read()", PRINT_PRIVATE)
        text = subprocess.run([sys.executable, "-c", script, path], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=True).stdout
        return int(text.split()[-1])


MAP_AND_WAIT = """
import mmap, os, sys
views = []
for name in sorted(os.listdir(sys.argv[1])):
    if name.endswith(".safetensors"):
        with open(os.path.join(sys.argv[1], name), "rb") as file:
            view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            view[::mmap.PAGESIZE]
            views.append(view)
print("touched", flush=True)
sys.stdin.read()
"""
PRINT_PRIVATE = """
private, counts = 0, False
for line in open("/proc/self/smaps"):
    if "-" in line.split(" ")[0]:
        counts = ".safetensors" in line
    elif counts and line.startswith(("Private_Dirty:", "Anonymous:")):
        private += int(line.split()[1])
print(private)
"""


class ChangingSource(SharedModel):
    def test_a_file_truncated_during_its_fill_ends_that_group_alone_and_a_second_preload_tries_again(self):
        _, _, other = self.node.preload(self.model).ready()
        large = harness.make_large(self.models / "large")
        weights = large / "pytorch_model.bin"
        failing = self.node.preload(large, mount=[])
        eventually(lambda: any(group["name"] == "large" and group["state"] == "filling"
                               for group in self.node.status()["groups"]), "the large model does not fill")
        os.truncate(weights, 1 << 20)
        self.assertEqual(failing.wait(), 4, failing.errors)
        self.assertIn("FAILED target stale:", failing.errors)
        self.assertIn("pytorch_model.bin", failing.errors)
        self.assertEqual([p.name for p in (self.node.mount / "target").iterdir() if p.name != "by-name"], [other.name])
        self.assert_same_files(self.model, other)
        _, _, again = self.node.preload(large, mount=[]).ready()
        self.assert_same_files(large, again)


if __name__ == "__main__":
    harness.main()
