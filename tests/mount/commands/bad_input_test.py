#!/usr/bin/env python3
"""Bad checkpoints and bad arguments through the command line: a clear error, the right exit code, nothing left behind,
and another group that goes on serving."""

import json
import pathlib
import subprocess
import sys

import harness
from harness import SharedModel, make_checkpoint

EXIT_CODES = {"corrupt": 1, "unsupported": 1, "denied": 1, "io": 1, "invalid": 2, "over-budget": 7}


class BadInput(SharedModel):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bad = cls.models / "bad"
        subprocess.run([sys.executable, harness.TOOLS / "malformed.py", cls.bad], check=True)
        cls.cases = json.loads((cls.bad / "cases.json").read_text())

    def test_every_malformed_checkpoint(self):
        """Beside a group that serves, and must not notice."""
        serving = self.node.preload(self.model)
        _, fingerprint, path = serving.ready()
        before = self.node.processes()
        for name, case in self.cases.items():
            if case["ok"] or case.get("needs") == "non-root":
                continue
            with self.subTest(name):
                bad = self.node.preload(self.bad / case["model"], mount=[])
                self.assertEqual(bad.wait(), EXIT_CODES[case["reason"]], bad.errors)
                self.assertEqual(bad.output, b"")
                self.assertIn(case["reason"], bad.errors)
                self.assertIn(case["mentions"], bad.errors)
        self.assertEqual(self.node.processes(), before)
        self.assertEqual(self.node.group()["fingerprint"], fingerprint)
        self.assert_same_files(self.model, path)
        self.assertEqual(serving.stop(), 0)
        self.assert_nothing_left()

    def test_what_looks_broken_and_is_not(self):
        for name, case in self.cases.items():
            if not case["ok"]:
                continue
            with self.subTest(name):
                good = self.node.preload(self.bad / case["model"], mount=False)
                good.ready()
                self.assertEqual(good.stop(), 0)

    def test_alone_nothing_is_left(self):
        for model in (self.bad / "hole-between", self.bad / "directory-empty", "/nowhere", "acme/MiMo-7B"):
            with self.subTest(str(model)):
                bad = self.node.preload(model)
                self.assertIn(bad.wait(), (1, 2))
                self.assertEqual(self.node.leftovers(), [])

    def test_a_hub_id_says_what_to_do(self):
        bad = self.node.preload("acme/MiMo-7B")
        self.assertEqual(bad.wait(), 2)
        self.assertIn("download", bad.errors)

    def test_arguments(self):
        model = str(self.model)
        long_dir = self.node.root / ("x" * 90)
        occupied = self.node.root / "occupied"
        occupied.mkdir()
        (occupied / "file").write_text("x")
        for words, mention in [
            ([model, "--mount", "/mnt/my-eagle3-mount"], "eagle3"),
            ([model, "--mount", "/mnt/EAGLE-mount"], "eagle-"),
            ([model, "--mount", str(occupied)], "occupied"),
            ([model, "--mount", str(occupied / "file")], "not a directory"),
            ([model, "--mount", "/proc"], "/proc"),
            ([model, "--run-dir", str(long_dir)], "107"),
            ([model, "--memory-limit", "12Q"], "12Q"),
            ([model, "--timeout", "soon"], "soon"),
            ([model, "--name", "a/b"], "a/b"),
            ([model, "--device", "tpu"], "tpu"),
            ([model, "--device", "cuda:"], "UUID"),
            ([model, "--device", "host", "--ipc", "vmm"], "--ipc"),
            ([model, "--ipc", "vmm"], "--ipc"),
            ([model, "--device", "cuda", "--ipc", "both"], "both"),
            ([model, "--log-level", "loud"], "loud"),
            ([model, "--no-such-option"], "--no-such-option"),
            ([model, "--mount", "/mnt/x", "--no-mount"], "--no-mount"),
            ([], "MODEL"),
        ]:
            with self.subTest(" ".join(words)):
                done = subprocess.run([harness.BIN / "wcache", "preload", "--run-dir", str(self.node.run_dir), *words]
                                      if "--run-dir" not in words else [harness.BIN / "wcache", "preload", *words],
                                      env=self.node.environment, capture_output=True, text=True, timeout=harness.WAIT)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertIn(mention, done.stderr)
                self.assertFalse(self.node.run_dir.exists())
                self.assertFalse(long_dir.exists())

    def test_errors_as_json(self):
        for words, reason, code, key in [
            (["status", "--json", "--log-level", "loud"], "invalid", 2, "--log-level"),
            (["fingerprint", "/nowhere", "--json"], "invalid", 2, "MODEL"),
            (["fingerprint", str(self.bad / "hole-between"), "--json"], "corrupt", 1, ""),
            (["fingerprint", "--json"], "invalid", 2, ""),
            (["doctor", "--json", "--nonsense"], "invalid", 2, ""),
        ]:
            with self.subTest(" ".join(words)):
                done = self.node.run(*words)
                self.assertEqual(done.returncode, code, done.stderr)
                error = json.loads(done.stdout)["error"]
                self.assertEqual(set(error), {"reason", "message", "hint", "key"})
                self.assertEqual(error["reason"], reason)
                if key:
                    self.assertEqual(error["key"], key)

    def test_an_unsafe_run_directory(self):
        self.node.run_dir.mkdir(mode=0o755)
        self.node.run_dir.chmod(0o755)
        for words in (["status"], ["ls"], ["wait"], ["evict", "0" * 32], ["verify"], ["preload", self.model, "--no-mount"]):
            done = self.node.run(*words)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("denied", done.stderr)


if __name__ == "__main__":
    harness.main()
