#!/usr/bin/env python3
"""Ctrl-C and SIGTERM at any moment of a preload: no process, mount, socket, lock or directory is left."""

import os
import random
import signal
import time

import harness
from harness import SharedModel, make_large


class Interrupt(SharedModel):
    MOMENTS = 20

    def test_at_random_moments(self):
        """From the first instruction to well after READY."""
        seed = int(os.environ.get("WCACHE_TEST_SEED", time.time()))
        moments = random.Random(seed)
        started = time.monotonic()
        first = self.node.preload(self.model)
        first.ready()
        whole = time.monotonic() - started
        self.assertEqual(first.stop(), 0)
        self.assert_nothing_left()
        for number in range(self.MOMENTS):
            # Half of them in the first twentieth, where everything is begun.
            span = whole / 20 if number % 2 else whole * 1.2
            moment = moments.uniform(0, span)
            stop = moments.choice((signal.SIGINT, signal.SIGTERM))
            with self.subTest(f"seed {seed}: {stop.name} after {moment * 1000:.1f} ms"):
                preload = self.node.preload(self.model)
                time.sleep(moment)
                code = preload.stop(stop)
                # Before main began the default action took it.
                self.assertIn(code, (0,) if preload.output else (128 + stop, -stop), preload.errors)
                self.assert_nothing_left()

    def test_while_it_fills(self):
        large = make_large(self.models / "large")
        preload = self.node.preload(large)
        harness.eventually(lambda: any(g["state"] == "filling" for g in self.node.status()["groups"]), "filling")
        began = time.monotonic()
        self.assertEqual(preload.stop(signal.SIGTERM), 128 + signal.SIGTERM)
        self.assertLess(time.monotonic() - began, 10)
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
