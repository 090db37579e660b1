#!/usr/bin/env python3
"""Groups of several ranks on one node: preload of checkpoints that are sharded by rank."""

import json
import os
import pathlib
import shutil
import signal
import tempfile

import harness
from harness import NodeTest, eventually, make_checkpoint


class Ranks(NodeTest):
    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(tempfile.mkdtemp(prefix="wcr-"))
        cls.addClassCleanup(shutil.rmtree, cls.models, ignore_errors=True)
        cls.model = make_checkpoint(cls.models / "two", "--kind", "sharded", "--tp", 2)

    def preload(self, model, ranks, *options, **where):
        return self.node.preload(model, "--tensor-parallel-size", ranks, *options, **where)

    def daemon_of(self, rank):
        pids = [pid for pid, line in self.node.processes() if f"--rank {rank} " in line]
        return pids[0] if len(pids) == 1 else None

    def test_every_rank_is_in_the_one_directory(self):
        for ranks in (2, 4):
            with self.subTest(ranks):
                model = make_checkpoint(self.models / f"tp{ranks}", "--kind", "sharded", "--tp", ranks)
                preload = self.preload(model, ranks)
                role, fingerprint, path = preload.ready()
                self.assertEqual((role, path), ("target", self.node.mount / "target" / fingerprint))
                self.assert_same_files(model, path)
                for rank in range(ranks):
                    file = path / f"model-rank-{rank}-part-0.safetensors"
                    self.assertEqual(os.getxattr(file, "user.wcache.rank"), str(rank).encode())
                    self.assertEqual(os.getxattr(file, "user.wcache.device_uuid"), f"HOST-{rank}".encode())
                group = self.node.group()
                self.assertEqual((group["state"], group["layout"], group["tp_size"]), ("ready", "sharded", ranks))
                self.assertEqual([(r["rank"], r["device_uuid"], pathlib.Path(r["socket"]).name) for r in group["ranks"]],
                                 [(r, f"HOST-{r}", f"wcache_{fingerprint[:16]}_HOST-{r}.sock") for r in range(ranks)])
                known = self.node.run("fingerprint", model, "--tensor-parallel-size", ranks)
                self.assertEqual(known.stdout.splitlines()[0], fingerprint)
                self.assertEqual(self.node.run("verify", fingerprint).returncode, 0)
                self.assertEqual(self.node.run("wait", "--timeout", 0).stdout, f"{path}\n")
                again = self.preload(model, ranks)
                self.assertEqual(again.wait(), 0, again.errors)
                self.assertEqual(again.output, preload.output)
                if ranks == 2:
                    self.assertEqual(preload.stop(), 0)
                else:
                    self.assertEqual(self.node.run("evict", fingerprint).returncode, 0)
                    self.assertEqual(preload.wait(), 0)
                self.assert_nothing_left()

    def test_one_held_rank_keeps_the_whole_group(self):
        preload = self.preload(self.model, 2)
        _, fingerprint, path = preload.ready()
        with open(path / "model-rank-1-part-0.safetensors", "rb"):
            self.assertEqual(self.node.run("evict", fingerprint).returncode, 6)
            self.assert_same_files(self.model, path)
            self.assertEqual(len(self.node.group()["ranks"]), 2)
        self.assertEqual(self.node.run("evict", fingerprint).returncode, 0)
        self.assertEqual(preload.wait(), 0)

    def test_an_unsharded_checkpoint_has_one_daemon(self):
        model = make_checkpoint(self.models / "whole", "--kind", "tiny")
        preload = self.preload(model, 4)
        _, _, path = preload.ready()
        self.assert_same_files(model, path)
        self.assertEqual([rank["device_uuid"] for rank in self.node.group()["ranks"]], ["HOST-0"])
        self.assertIn("for every rank", self.node.run("status").stdout)

    def test_a_wrong_size_is_refused(self):
        for ranks in (1, 3, 4):
            preload = self.preload(self.model, ranks)
            self.assertEqual(preload.wait(), 2, preload.errors)
            self.assertIn("sharded for 2 ranks", preload.errors)
            self.assertEqual(self.node.leftovers(), [])

    def test_drafts_of_sharded_checkpoints_come_from_disk(self):
        config = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
        model = self.models / "with-mtp"
        shutil.copytree(self.model, model)
        text = json.loads((model / "config.json").read_text())
        text.update(architectures=["MiMoForCausalLM"], model_type="mimo", num_nextn_predict_layers=1)
        (model / "config.json").write_text(json.dumps(text))
        preload = self.preload(model, 2, "--speculative-config", config, mount=False)
        preload.ready()
        self.assertIn("no draft0 group (disk): ", preload.errors)
        self.assertEqual(preload.stop(), 0)

    def test_one_memory_limit_for_all_ranks(self):
        size = sum(p.stat().st_size for p in self.model.glob("model-rank-0-*"))
        preload = self.preload(self.model, 2, "--memory-limit", size + (1 << 20))
        self.assertEqual(preload.wait(), 7)
        self.assertRegex(preload.errors, "FAILED target over-budget: .*--memory-limit leaves")
        self.assert_nothing_left(logs=True)

    def test_nothing_is_seen_before_the_last_rank_is_filled_and_its_death_ends_the_others(self):
        model = make_checkpoint(self.models / "large", "--kind", "sharded", "--tp", 2, "--layers", 300)
        preload = self.preload(model, 2)
        pid = eventually(lambda: self.daemon_of(1), "the daemon of rank 1")
        os.kill(pid, signal.SIGSTOP)
        rank = lambda: self.node.group()["ranks"][0]
        eventually(lambda: rank().get("filled") and rank()["filled"] == rank()["nbytes"], "rank 0 is filled")
        self.assertIn(self.node.group()["state"], ("filling", "starting"))
        self.assertEqual(list(self.node.run_dir.glob("wcache_*.sock")), [])
        self.assertEqual(sorted(p.name for p in (self.node.mount / "target").iterdir()), ["by-name"])
        self.assertEqual(self.node.run("wait", "--timeout", 0).returncode, 5)
        self.assertEqual(preload.output, b"")
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(preload.wait(), 1)
        self.assertRegex(preload.errors, r"FAILED target internal: .*rank 1 .*signal 9")
        self.assert_nothing_left(logs=True)
        # Another try: what rank 0 has read is remembered, and nothing else.
        again = self.preload(model, 2)
        self.assert_same_files(model, again.ready()[2])
        self.assertEqual(again.stop(), 0)

    def test_a_launcher_killed_before_ready_takes_its_ranks_along(self):
        model = make_checkpoint(self.models / "larger", "--kind", "sharded", "--tp", 2, "--layers", 300, "--seed", 2)
        preload = self.preload(model, 2, mount=False)
        pid = eventually(lambda: self.daemon_of(1), "the daemon of rank 1")
        os.kill(pid, signal.SIGSTOP)
        preload.process.kill()
        preload.wait()
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: not self.node.processes(), lambda: self.node.processes())

    def test_a_killed_launcher_costs_nothing_and_a_lost_rank_is_said(self):
        preload = self.preload(self.model, 2)
        _, fingerprint, path = preload.ready()
        preload.process.kill()
        preload.wait()
        self.assert_same_files(self.model, path)
        self.assertEqual(self.node.group()["state"], "ready")
        os.kill(self.daemon_of(1), signal.SIGKILL)
        eventually(lambda: self.node.group()["state"] == "orphaned", "orphaned")
        self.assert_same_files(self.model, path)

    def test_what_is_left_of_a_group_is_not_ready_and_can_be_evicted(self):
        preload = self.preload(self.model, 2, mount=False)
        _, fingerprint, _ = preload.ready()
        preload.process.kill()
        preload.wait()
        os.kill(self.daemon_of(1), signal.SIGKILL)
        eventually(lambda: self.node.group()["state"] == "failed", lambda: self.node.group())
        self.assertEqual(self.node.group()["reason"], "not-ready")
        self.assertEqual(self.node.run("wait", "--timeout", 0).returncode, 1)
        self.assertEqual(self.node.run("evict", fingerprint).returncode, 0)
        eventually(lambda: not self.node.processes(), lambda: self.node.processes())


if __name__ == "__main__":
    harness.main()
