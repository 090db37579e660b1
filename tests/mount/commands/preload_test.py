#!/usr/bin/env python3
"""preload, wait, status, ls, fingerprint and verify with real processes on a real mount."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import harness
from harness import SharedModel, eventually, make_checkpoint


class ThinSlice(SharedModel):
    def test_from_ready_to_nothing_left(self):
        preload = self.node.preload(self.model)
        role, fingerprint, path = preload.ready()
        self.assertEqual(role, "target")
        self.assertEqual(path, self.node.mount / "target" / fingerprint)
        self.assert_same_files(self.model, path)

        status = self.node.status()
        self.assertEqual(status["run_dir"], str(self.node.run_dir))
        self.assertEqual(status["mount"]["path"], str(self.node.mount))
        group = status["groups"][0]
        self.assertEqual((group["role"], group["fingerprint"], group["state"], group["path"], group["name"]),
                         ("target", fingerprint, "ready", str(path), "first"))
        self.assertEqual(group["source"], str(self.model))
        self.assertEqual(group["layout"], "checkpoint")
        self.assertEqual(group["tp_size"], 1)
        self.assertEqual(group["nbytes"], sum(p.stat().st_size for p in self.model.rglob("*") if p.is_file()))
        rank = group["ranks"][0]
        self.assertEqual((rank["rank"], rank["state"], rank["device_uuid"], rank["tier"]), (0, "ready", "HOST-0", "host"))
        self.assertIn(rank["pages"], ("huge", "small"))
        self.assertIn(rank["fill_path"], ("io_uring-direct", "io_uring-buffered", "threads"))
        self.assertEqual(rank["filled"], rank["nbytes"])
        self.assertEqual(rank["survives"], status["mount"]["passthrough"])
        self.assertEqual(pathlib.Path(rank["socket"]).name, f"wcache_{fingerprint[:16]}_HOST-0.sock")

        seen = json.loads((self.node.mount / "status.json").read_text())
        self.assertEqual(seen["groups"][0]["fingerprint"], fingerprint)
        self.assertEqual(preload.stop(), 0)
        self.assertEqual(preload.output.decode(), f"READY target {fingerprint} {path}\n")
        self.assert_nothing_left()

    def test_status_and_ls_for_people(self):
        self.assertEqual(self.node.run("status").returncode, 3)
        self.assertEqual(self.node.run("ls").returncode, 3)
        nothing = self.node.run("status", "--json")
        self.assertEqual(nothing.returncode, 3)
        self.assertEqual(json.loads(nothing.stdout)["groups"], [])
        self.assertFalse(self.node.run_dir.exists())
        _, fingerprint, path = self.node.preload(self.model, "--name", "my model").ready()
        text = self.node.run("status").stdout
        for part in ("my model", fingerprint, str(path), str(self.model), "ready", "HOST-0"):
            self.assertIn(part, text)
        self.assertRegex(self.node.run("ls").stdout, rf"^target +{fingerprint} +ready +.*my model\n$")
        self.assertEqual(os.readlink(self.node.mount / "target" / "by-name" / "my model"), f"../{fingerprint}")

    def test_fingerprint_agrees_and_remembers(self):
        self.node.environment["WCACHE_CACHE_DIR"] = str(self.node.root / "cache")
        old = time.time() - 10
        for file in self.model.rglob("*"):
            os.utime(file, (old, old))
        time.sleep(2.5)  # digests of files that changed a moment ago are not remembered
        before = json.loads(self.node.run("fingerprint", self.model, "--json").stdout)
        self.assertEqual({f["how"] for f in before["files"]}, {"read"})
        again = json.loads(self.node.run("fingerprint", self.model, "--json").stdout)
        self.assertEqual({f["how"] for f in again["files"]}, {"remembered"})
        self.assertEqual(again["fingerprint"], before["fingerprint"])
        self.assertEqual((again["role"], again["name"], again["fields"]["layout"]), ("target", "first", "checkpoint"))
        text = self.node.run("fingerprint", self.model).stdout
        self.assertEqual(text.splitlines()[0], before["fingerprint"])
        self.assertIn("remembered", text)
        draft = json.loads(self.node.run("fingerprint", self.model, "--role", "draft0", "--json").stdout)
        self.assertNotEqual(draft["fingerprint"], before["fingerprint"])
        _, fingerprint, path = self.node.preload(self.model).ready()
        self.assertEqual(fingerprint, before["fingerprint"])
        self.assertEqual(str(path), str(self.node.mount / "target" / fingerprint))
        self.assertEqual(json.loads(self.node.run("fingerprint", self.model, "--json").stdout)["path"], str(path))

    def test_verify(self):
        self.assertEqual(self.node.run("verify").returncode, 3)
        _, fingerprint, path = self.node.preload(self.model).ready()
        for entry in ([], [fingerprint], [fingerprint[:8]], ["first"], [path], [path / "config.json"],
                      [self.node.mount / "target" / "by-name" / "first"]):
            done = self.node.run("verify", *entry)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"verified target/{fingerprint}", done.stdout)
        for entry in ("", "nobody", fingerprint[:7], "0" * 32, self.node.mount / "target" / ("0" * 32)):
            self.assertEqual(self.node.run("verify", entry).returncode, 3, entry)

    def test_wait_before_preload(self):
        waiting = subprocess.Popen([harness.BIN / "wcache", "wait", "--run-dir", self.node.run_dir, "--timeout", "60"],
                                   stdout=subprocess.PIPE, text=True, env=self.node.environment)
        self.addCleanup(waiting.stdout.close)
        time.sleep(0.3)
        _, fingerprint, path = self.node.preload(self.model).ready()
        self.assertEqual(waiting.wait(timeout=60), 0)
        self.assertEqual(waiting.stdout.read(), f"{path}\n")
        self.assertEqual(self.node.run("wait", "--fingerprint", fingerprint, "--timeout", 0).stdout, f"{path}\n")
        self.assertEqual(self.node.run("wait", "--name", "first", "--timeout", 0).returncode, 0)
        self.assertEqual(self.node.run("wait", "--name", "other", "--timeout", 0).returncode, 3)
        self.assertEqual(self.node.run("wait", "--name", "other", "--timeout", 1).returncode, 5)
        self.assertEqual(self.node.run("wait", "--name", "first", "--role", "draft0", "--timeout", 1).returncode, 5)

    def test_over_the_memory_limit(self):
        preload = self.node.preload(self.model, "--memory-limit", "1M")
        self.assertEqual(preload.wait(), 7)
        self.assertEqual(preload.output, b"")
        self.assertRegex(preload.errors, r"FAILED target over-budget: .*memory.limit")
        self.assert_nothing_left(logs=True)
        self.node.preload(self.model, "--memory-limit", "1G").ready()

    def test_already_served(self):
        first = self.node.preload(self.model)
        _, fingerprint, path = first.ready()
        daemon = self.node.pid_of("wcached")
        again = self.node.preload(self.model)
        self.assertEqual(again.wait(), 0, again.errors)
        self.assertEqual(again.output.decode(), f"READY target {fingerprint} {path}\n")
        self.assertIn("already served by pid", again.errors)
        self.assertEqual(self.node.pid_of("wcached"), daemon)
        self.assertTrue(path.is_dir())
        self.assertEqual(first.stop(), 0)
        self.assert_nothing_left()

    def test_without_a_mount(self):
        preload = self.node.preload(self.model, mount=False)
        _, fingerprint, path = preload.ready()
        self.assertEqual(str(path), "-")
        self.assertNotIn("mount", self.node.status())
        self.assertEqual(self.node.run("wait").stdout, "-\n")
        self.assertEqual(self.node.run("verify", fingerprint).returncode, 0)
        self.assertEqual(preload.stop(signal.SIGTERM), 0)
        self.assert_nothing_left()

    def test_a_single_file(self):
        weights = self.model / "model-00001-of-00002.safetensors"
        alone = self.models / "alone.safetensors"
        alone.write_bytes(weights.read_bytes())
        _, _, path = self.node.preload(alone).ready()
        self.assertEqual((path / "alone.safetensors").read_bytes(), alone.read_bytes())

    def test_the_mount_path_that_was_there_stays(self):
        self.node.mount.mkdir(parents=True)
        preload = self.node.preload(self.model)
        preload.ready()
        self.assertEqual(preload.stop(), 0)
        self.assertTrue(self.node.mount.is_dir())
        self.assertEqual(list(self.node.mount.iterdir()), [])

    def test_an_odd_mount_path(self):
        odd = self.node.root / "m" / "a, b=c \\ ü"
        preload = self.node.preload(self.model, mount=["--mount", odd])
        _, fingerprint, path = preload.ready()
        self.assertEqual(path, odd / "target" / fingerprint)
        self.assert_same_files(self.model, path)
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
