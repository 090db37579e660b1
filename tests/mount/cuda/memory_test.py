#!/usr/bin/env python3
"""Preloads on a device whose memory does not suffice for two: what comes first, what waits, what is dropped."""

import os
import signal
import time
import unittest

import cuda_harness
from cuda_harness import MTP, REAL, CudaTest, digests_of, eventually


@unittest.skipIf(REAL, "the machine is set up by the fake driver")
class TargetAndDraft(CudaTest):
    """A device that has room for the target or its draft."""
    config = {"devices": 1, "device.0.memory": 4 << 20}

    def test_the_target_comes_first(self):
        model = self.make("mimo", "--kind", "mimo")
        for _ in range(4):
            preload = self.node.preload(model, "--device", "cuda", "--speculative-config", MTP)
            self.assertEqual(preload.ready()[0], "target")
            eventually(lambda: "FAILED draft0 over-budget" in preload.errors, lambda: preload.errors)
            self.assertNotIn("FAILED target", preload.errors)
            self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left(logs=True)


class OneModel(CudaTest):
    config = {"devices": 1, "device.0.memory": 12 << 20}

    def setUp(self):
        super().setUp()
        self.model = self.make("model", "--kind", "tiny", "--size", "8M")
        changed = max(file.stat().st_ctime for file in self.model.iterdir())
        eventually(lambda: time.time() > changed + 2.1, "old enough for its digests to be remembered")

    def preload(self, model=None, *options):
        return self.node.preload(model or self.model, "--device", "cuda", *options)

    def target(self):
        return self.groups().get("target", {"state": "unknown"})


@unittest.skipIf(REAL, "the machine is set up by the fake driver")
class SameModel(OneModel):
    """Of several that load one model, of which nothing is remembered, one does; the others find too little memory."""

    def held_up(self):
        """One that fills, and another one that waits for it."""
        self.gpu.hold_copies()
        first = self.preload()
        eventually(lambda: self.target()["state"] == "filling", lambda: self.node.status())
        second = self.preload()
        eventually(lambda: "device memory are needed" in second.errors, lambda: second.errors)
        return first, second

    def test_the_others_wait_for_the_one(self):
        first, second = self.held_up()
        self.assertNotIn("FAILED", second.errors)
        self.gpu.let_copies_go()
        first.ready()
        self.assertEqual(second.wait(), 0, second.errors)
        self.assertIn("already served by pid", second.errors)
        self.assertEqual(second.output, first.output)
        self.assertEqual(first.stop(), 0)
        self.assert_nothing_left(logs=True)

    def test_one_takes_over_when_the_one_fails(self):
        first, second = self.held_up()
        daemon = self.target()["ranks"][0]["pid"]
        os.kill(daemon, signal.SIGKILL)
        self.assertEqual(first.wait(), 1, first.errors)
        self.gpu.let_copies_go()
        second.ready()
        self.assertNotIn("FAILED", second.errors)
        self.assertEqual(second.stop(), 0)

    def test_many_at_once(self):
        preloads = [self.preload() for _ in range(4)]
        for preload in preloads:
            preload.ready()
        self.assertEqual({preload.output for preload in preloads}, {preloads[0].output})
        for preload in preloads:
            self.assertIn(preload.stop() if preload.process.poll() is None else preload.wait(), (0,), preload.errors)
        self.assert_nothing_left(logs=True)

    def test_other_files_are_no_reason_to_wait(self):
        first = self.preload()
        first.ready()
        other = self.preload(self.make("other", "--kind", "tiny", "--size", "8M", "--seed", 5))
        self.assertEqual(other.wait(), 7, other.errors)
        self.assertEqual(other.output, b"")
        self.assertEqual(first.stop(), 0)


@unittest.skipIf(REAL, "the machine is set up by the fake driver")
class Default(OneModel):
    def test_a_device_that_is_too_small_is_an_error_that_names_the_way_out(self):
        self.gpu.configure({"devices": 1, "device.0.memory": 4 << 20})
        preload = self.node.preload(self.model)
        self.assertEqual(preload.wait(), 7, preload.errors)
        self.assertIn("--device host", preload.errors)
        asked = self.preload()
        self.assertEqual(asked.wait(), 7, asked.errors)
        self.assertNotIn("--device host", asked.errors)
        host = self.node.preload(self.model, "--device", "host")
        host.ready()
        self.assertEqual(host.stop(), 0)
        self.assert_nothing_left(logs=True)


@unittest.skipIf(REAL, "the machine is set up by the fake driver")
class Orphan(OneModel):
    """What a killed daemon leaves behind is more than half of the device."""

    def orphaned(self):
        first = self.preload()
        _, fingerprint, path = first.ready()
        os.kill(self.daemon_of(), signal.SIGKILL)
        eventually(lambda: self.target()["state"] == "orphaned", lambda: self.node.status())
        return first, fingerprint, path

    def replace(self):
        first, fingerprint, path = self.orphaned()
        again = self.preload()
        self.assertEqual(again.ready()[1], fingerprint)
        self.assertNotIn("FAILED", again.errors)
        self.assert_same_files(self.model, path)
        self.assertEqual(self.target()["state"], "ready")
        self.assertEqual(first.stop() if first.process.poll() is None else first.wait(), 0, first.errors)
        self.assert_same_files(self.model, path)
        self.assertEqual(again.stop(), 0)
        self.assert_nothing_left(logs=True)

    def test_a_new_one_replaces_it(self):
        self.replace()

    def test_a_new_one_replaces_it_when_nothing_is_remembered(self):
        self.node.environment["WCACHE_CACHE_DIR"] = "/proc/no-cache"
        self.replace()

    def test_who_holds_it_is_named(self):
        first, fingerprint, path = self.orphaned()
        engine = self.engine(fingerprint)
        self.assertEqual(engine.answer(), digests_of(*self.model.glob("*.safetensors")))
        again = self.preload()
        self.assertEqual(again.wait(), 7, again.errors)
        for mention in ("FAILED target over-budget", f"target/{fingerprint} is held by", str(engine.pid)):
            self.assertIn(mention, again.errors)
        self.assertEqual(self.target()["state"], "orphaned")
        self.assertEqual(engine.stop(), 0)
        self.assertEqual(first.stop(), 0)
        self.assert_nothing_left(logs=True)

    def test_where_there_is_room_it_serves_until_it_is_replaced(self):
        self.gpu.configure({"devices": 1, "device.0.memory": 20 << 20})
        first, fingerprint, _ = self.orphaned()
        again = self.preload()
        again.ready()
        self.assertNotIn("dropped", again.errors)
        self.assertEqual(first.stop(), 0)
        self.assertEqual(again.stop(), 0)


if __name__ == "__main__":
    cuda_harness.main()
