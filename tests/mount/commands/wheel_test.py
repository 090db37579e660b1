#!/usr/bin/env python3
"""The Python package as it is handed on: the wheel and the installed one, alone in an environment of their own, attach."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import harness
from harness import SharedModel

BUILD = harness.BIN.parent
ATTACH = """
import sys, wcache
with wcache.open(sys.argv[1], run_dir=sys.argv[2], framework="numpy") as model:
    print(wcache.__file__, sum(len(model.bytes(name)) for name in model))
"""


class Handed(SharedModel):
    """Each test makes what it attaches with below `work`."""

    def setUp(self):
        super().setUp()
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="wcw-"))
        self.addCleanup(shutil.rmtree, self.work, ignore_errors=True)
        self.preload = self.node.preload(self.model, mount=False)
        _, self.fingerprint, _ = self.preload.ready()

    def run_quietly(self, *command):
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=300, env=self.environment())
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def environment(self, **more):
        """Nothing that would lead to the build's own package or library, nor to the network."""
        left_out = ("PYTHONPATH", "LD_LIBRARY_PATH", "WCACHE_LIBRARY", "WCACHE_RUN_DIR")
        return {**{k: v for k, v in os.environ.items() if k not in left_out}, "PIP_NO_INDEX": "1", **more}

    def assert_attaches(self, python, package, **environment):
        done = subprocess.run([python, "-c", ATTACH, self.fingerprint, self.node.run_dir], cwd=self.work, timeout=60,
                              capture_output=True, text=True, env=self.environment(**environment))
        self.assertEqual(done.returncode, 0, done.stderr)
        where, nbytes = done.stdout.split()
        self.assertTrue(pathlib.Path(where).is_relative_to(package), (where, package))
        self.assertEqual(int(nbytes), sum(self.tensor_nbytes()))

    def tensor_nbytes(self):
        for path in self.model.glob("*.safetensors"):
            with open(path, "rb") as file:
                yield path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")

    def venv(self):
        """The Python of a new environment, which has pip."""
        directory = self.work / "venv"
        self.run_quietly(sys.executable, "-m", "venv", directory)
        return directory / "bin" / "python"

    def test_the_wheel_of_the_build(self):
        (wheel,) = (BUILD / "python" / "dist").glob("wcache-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            self.assertIn("wcache/libwcache.so.0", archive.namelist())
        python = self.venv()
        self.run_quietly(python, "-m", "pip", "install", "--no-deps", wheel)
        self.assert_attaches(python, self.work / "venv")
        self.run_quietly(python, "-m", "pip", "check")
        self.run_quietly(python, "-m", "pip", "uninstall", "-y", "wcache")
        self.assertEqual([p for p in (self.work / "venv").rglob("wcache*")], [])

    def test_the_wheel_that_pip_makes(self):
        self.run_quietly(self.venv(), "-m", "pip", "wheel", "--no-deps", "--wheel-dir", self.work,
                         "--config-settings", f"library={BUILD / 'lib' / 'libwcache.so.0'}", harness.SOURCE / "python")
        (wheel,) = self.work.glob("wcache-*.whl")
        (built,) = (BUILD / "python" / "dist").glob("wcache-*.whl")
        self.assertEqual((wheel.name, wheel.read_bytes()), (built.name, built.read_bytes()))

    def test_the_installed_package(self):
        prefix = self.work / "prefix"
        for part in ("client", "python"):
            self.run_quietly("cmake", "--install", BUILD / part, "--prefix", prefix)
        (package,) = {path.parent for path in prefix.rglob("py.typed")}
        self.assertTrue((package / "libwcache.so.0").resolve().is_relative_to(prefix))
        self.assert_attaches(sys.executable, prefix, PYTHONPATH=str(package.parent))


if __name__ == "__main__":
    harness.main()
