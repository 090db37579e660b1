#!/usr/bin/env python3
"""Launchers, daemons and the mount that end, are killed, or meet: what lives on, and who takes over."""

import hashlib
import json
import mmap
import os
import random
import signal
import threading
import time

import harness
from harness import SharedModel, eventually, make_checkpoint, make_large

SHARD = "model-00001-of-00002.safetensors"


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Supervision(SharedModel):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.other = make_checkpoint(cls.models / "other", "--kind", "tiny", "--seed", 2)

    def wcachefs_pid(self):
        mount = self.node.status().get("mount")
        return mount and mount["pid"]

    def new_mount(self, old):
        """Waits for a wcachefs other than `old`."""
        return eventually(lambda: self.wcachefs_pid() not in (None, old) and self.wcachefs_pid(), "another wcachefs")

    def test_two_launchers_share_a_mount(self):
        first = self.node.preload(self.model)
        _, _, first_path = first.ready()
        second = self.node.preload(self.other, mount=[])
        _, _, second_path = second.ready()
        self.assertEqual(second_path.parent, first_path.parent)
        self.assertEqual(len(self.node.mounts()), 1)
        self.assertEqual(first.stop(), 0)
        eventually(lambda: not first_path.exists(), "the first entry is gone")
        self.assert_same_files(self.other, second_path)
        eventually(lambda: len(self.node.processes()) == 3, "launcher, daemon and mount of the second")
        self.assertEqual(second.stop(), 0)
        self.assert_nothing_left()

    def test_another_mount_path_is_refused(self):
        _, _, path = self.node.preload(self.model).ready()
        second = self.node.preload(self.other, mount=["--mount", self.node.root / "elsewhere"])
        self.assertEqual(second.wait(), 2)
        self.assertIn(str(self.node.mount), second.errors)
        self.assertEqual(second.output, b"")
        self.assertFalse((self.node.root / "elsewhere").exists())
        self.assertTrue(path.is_dir())

    def test_killed_wcachefs_is_replaced_and_mappings_keep_their_bytes(self):
        _, _, path = self.node.preload(self.model).ready()
        passthrough = self.node.status()["mount"]["passthrough"]
        wanted = digest((self.model / SHARD).read_bytes())
        with open(path / SHARD, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.addCleanup(mapping.close)
        for _ in range(2):
            old = self.wcachefs_pid()
            os.kill(old, signal.SIGKILL)
            self.new_mount(old)
            if passthrough:
                self.assertEqual(digest(mapping), wanted)
            eventually(path.is_dir, "the path is back")
            self.assert_same_files(self.model, path)
        self.assertEqual(len(self.node.mounts()), 1)

    def test_the_next_launcher_takes_over_when_the_first_is_killed(self):
        first = self.node.preload(self.model)
        _, _, first_path = first.ready()
        second = self.node.preload(self.other, mount=[])
        second.ready()
        first.process.kill()
        first.wait()
        self.assert_same_files(self.model, first_path)  # its daemon serves on
        old = self.wcachefs_pid()
        os.kill(old, signal.SIGKILL)
        self.new_mount(old)
        eventually(first_path.is_dir, "the killed launcher's entry is back")
        daemon = next(pid for pid, line in self.node.processes() if str(self.model) in line and "wcached" in line)
        self.assertEqual(second.stop(), 0)
        self.assertIn(f"pid {daemon} serves", second.errors)
        self.assert_same_files(self.model, first_path)
        os.kill(daemon, signal.SIGTERM)
        eventually(lambda: not first_path.exists(), "the daemon ended")
        third = self.node.preload(self.other)
        third.ready()
        self.assertEqual(third.stop(), 0)
        self.assert_nothing_left()

    def test_the_next_launcher_takes_over_when_the_first_stops(self):
        first = self.node.preload(self.model)
        first.ready()
        second = self.node.preload(self.other, mount=[])
        second.ready()
        self.assertEqual(first.stop(signal.SIGTERM), 0)
        old = self.wcachefs_pid()
        os.kill(old, signal.SIGKILL)
        self.new_mount(old)
        self.assertEqual(second.stop(signal.SIGTERM), 0)
        self.assert_nothing_left()

    def test_a_killed_launcher_costs_nothing_and_a_new_one_finds_everything(self):
        first = self.node.preload(self.model)
        _, fingerprint, path = first.ready()
        first.process.kill()
        first.wait()
        again = self.node.preload(self.model)
        self.assertEqual(again.wait(), 0, again.errors)
        self.assert_same_files(self.model, path)
        self.assertEqual(self.node.run("evict", fingerprint).returncode, 0)
        third = self.node.preload(self.model)
        third.ready()
        self.assertEqual(third.stop(), 0)
        self.assert_nothing_left()

    def test_the_mount_stays_while_it_shows_what_others_serve(self):
        """Who ends last, having failed or been stopped, leaves it where a daemon serves on whose launcher was killed."""
        first = self.node.preload(self.model)
        _, fingerprint, path = first.ready()
        first.process.kill()
        first.process.wait()
        failed = self.node.preload(self.other, "--memory-limit", "1K")
        self.assertEqual(failed.wait(), 7, failed.errors)
        self.assertIn("left the mount", failed.errors)
        self.assert_same_files(self.model, path)
        stopped = self.node.preload(self.other)
        _, _, other_path = stopped.ready()
        self.assertEqual(stopped.stop(), 0)
        self.assertIn(f"serves target/{fingerprint}", stopped.errors)
        self.assert_same_files(self.model, path)
        self.assertFalse(other_path.exists())
        self.assertEqual(self.node.run("evict", fingerprint).returncode, 0)
        last = self.node.preload(self.other)
        last.ready()
        self.assertEqual(last.stop(), 0)
        self.assert_nothing_left()

    def test_a_killed_daemon_leaves_its_entry_to_the_mount(self):
        self.killed_daemon()

    def test_the_same_when_the_fingerprint_is_remembered(self):
        eventually(lambda: self.remembered(), "digests are remembered")
        self.killed_daemon()

    def remembered(self):
        done = self.node.run("fingerprint", self.model, "--json")
        return {file["how"] for file in json.loads(done.stdout)["files"]} == {"remembered"}

    def killed_daemon(self):
        preload = self.node.preload(self.model)
        _, _, path = preload.ready()
        os.kill(self.node.pid_of("wcached"), signal.SIGKILL)
        eventually(lambda: self.node.group()["state"] == "orphaned", "orphaned")
        eventually(lambda: "still serves" in preload.errors, "said on standard error")
        self.assert_same_files(self.model, path)
        self.assertIsNone(preload.process.poll())
        again = self.node.preload(self.model)
        again.ready()
        eventually(lambda: self.node.group()["state"] == "ready", "ready again")
        self.assert_same_files(self.model, path)
        self.assertEqual(again.stop(), 0)
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left(logs=True)

    def test_launchers_come_and_go(self):
        """Two at a time, each stopped at some moment: whoever is last clears up, whoever comes then begins anew."""
        seed = int(os.environ.get("WCACHE_TEST_SEED", time.time()))
        self.node.run_dir = self.node.root / "r,u\\n"  # what mount options must escape
        wrong = []

        def come_and_go(model, moments):
            for _ in range(6):
                preload = self.node.preload(model)
                if moments.random() < 0.5:
                    preload.ready()
                else:
                    time.sleep(moments.uniform(0, 0.3))
                stop = moments.choice((signal.SIGINT, signal.SIGTERM))
                code = preload.stop(stop)
                if code not in (0, 128 + stop, -stop):
                    wrong.append((code, preload.errors))

        threads = [threading.Thread(target=come_and_go, args=(model, random.Random(f"{seed} {model.name}")))
                   for model in (self.model, self.other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [], f"seed {seed}")
        self.assert_nothing_left()

    def test_a_launcher_takes_its_orphaned_entry_along(self):
        first = self.node.preload(self.model)
        _, _, path = first.ready()
        second = self.node.preload(self.other, mount=[])
        second.ready()
        daemon = next(pid for pid, line in self.node.processes() if str(self.model) in line and "wcached" in line)
        os.kill(daemon, signal.SIGKILL)
        eventually(lambda: "still serves" in first.errors, "said on standard error")
        self.assertTrue(path.is_dir())
        self.assertEqual(first.stop(), 0)
        eventually(lambda: not path.exists(), "the orphaned entry went with its launcher")
        self.assertEqual(self.node.group()["state"], "ready")

    def test_a_daemon_killed_while_it_fills_is_a_failed_group(self):
        large = make_large(self.models / "large")
        preload = self.node.preload(large)
        pid = eventually(lambda: [p for p, line in self.node.processes() if "/wcached " in line + " "], "wcached")[0]
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(preload.wait(), 1)
        self.assertRegex(preload.errors, r"FAILED target internal: .*signal 9")
        self.assert_nothing_left(logs=True)

    def test_mapped_at_stop_keeps_its_bytes(self):
        preload = self.node.preload(self.model)
        _, _, path = preload.ready()
        if not self.node.status()["mount"]["passthrough"]:
            self.skipTest("mappings outlive the mount by passthrough only")
        with open(path / SHARD, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.addCleanup(mapping.close)
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left()
        self.assertEqual(digest(mapping), digest((self.model / SHARD).read_bytes()))

    def test_a_mount_that_no_launcher_made_is_left(self):
        self.node.mount.mkdir(parents=True)
        done = os.spawnve(os.P_WAIT, harness.BIN / "wcachefs",
                          ["wcachefs", str(self.node.mount), "-o", f"run_dir={self.node.run_dir}"], self.node.environment)
        self.assertEqual(done, 0)
        preload = self.node.preload(self.model)
        _, _, path = preload.ready()
        self.assert_same_files(self.model, path)
        self.assertEqual(preload.stop(), 0)
        self.assertEqual(len(self.node.mounts()), 1)
        self.assertTrue(self.wcachefs_pid())


if __name__ == "__main__":
    harness.main()
