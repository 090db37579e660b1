#!/usr/bin/env python3
"""libwcache against real daemons: installed, compiled against by a C compiler through pkg-config, and run."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import harness
from harness import SharedModel, bytes_of, eventually

BUILD = harness.BIN.parent


class Library(SharedModel):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.prefix = pathlib.Path(tempfile.mkdtemp(prefix="wcp-"))
        cls.addClassCleanup(shutil.rmtree, cls.prefix, ignore_errors=True)
        subprocess.run(["cmake", "--install", BUILD / "client", "--prefix", cls.prefix], check=True,
                       stdout=subprocess.DEVNULL)
        (cls.library,) = {path.parent for path in cls.prefix.rglob("libwcache.so")}
        cls.program = cls.prefix / "attach"
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "wcache"], check=True, stdout=subprocess.PIPE, text=True,
                               env=dict(os.environ, PKG_CONFIG_PATH=str(cls.library / "pkgconfig"))).stdout.split()
        strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        subprocess.run(["cc", *strict, harness.SOURCE / "examples" / "attach.c", *flags, "-o", cls.program], check=True)

    def attach(self, entry):
        return subprocess.run([self.program, entry, self.node.run_dir], capture_output=True, text=True, timeout=60,
                              env=dict(self.node.environment, LD_LIBRARY_PATH=str(self.library)))

    def assert_same_tensors(self, done, fingerprint):
        self.assertEqual(done.returncode, 0, done.stderr)
        first, *lines = done.stdout.splitlines()
        self.assertEqual(first.split()[:2], ["target", fingerprint])
        rows = [line.split() for line in lines]
        found = {name: (int(nbytes), int(total)) for name, _, nbytes, _, total, place in rows if place == "host"}
        expected = {}
        for path in self.model.glob("*.safetensors"):
            expected.update({name: (len(data), sum(data)) for name, data in bytes_of(path).items()})
        self.assertEqual(found, expected)

    def test_every_tensor_by_every_kind_of_name(self):
        preload = self.node.preload(self.model)
        _, fingerprint, path = preload.ready()
        self.until_remembered(self.model)
        for entry in (fingerprint, fingerprint[:8], self.model.name, path, path / "config.json", self.model):
            with self.subTest(entry=entry):
                self.assert_same_tensors(self.attach(entry), fingerprint)
        preload.stop()
        self.assert_nothing_left()

    def until_remembered(self, model):
        """Files that were written a moment ago are read again: the digest cache remembers only what has settled."""
        def remembered():
            done = self.node.run("fingerprint", model, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return all(file["how"] == "remembered" for file in json.loads(done.stdout)["files"])
        eventually(remembered, "the digests are remembered")

    def test_without_a_mount(self):
        preload = self.node.preload(self.model, mount=False)
        _, fingerprint, _ = preload.ready()
        self.assert_same_tensors(self.attach(fingerprint), fingerprint)
        preload.stop()

    def test_a_model_that_is_not_served_as_it_is(self):
        preload = self.node.preload(self.model, mount=False)
        preload.ready()
        other = self.node.root / "other"
        shutil.copytree(self.model, other)
        done = self.attach(other)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not remembered", done.stderr)
        self.until_remembered(other)
        self.assert_same_tensors(self.attach(other), self.node.group()["fingerprint"])
        (other / "config.json").write_text((other / "config.json").read_text() + " ")
        self.assertEqual(self.attach(other).returncode, 1)
        preload.stop()


if __name__ == "__main__":
    harness.main()
