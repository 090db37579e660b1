#!/usr/bin/env python3
"""Tests of preload.py itself, with shell scripts in wcache's place: what a program leaves behind must be noticed."""

import os
import pathlib
import tempfile
import unittest

import preload

READY = 'mkdir -p "$D/mnt/target/abc" && echo "READY target abc $D/mnt/target/abc"'
STOP = "trap 'rm -r \"$D/mnt\"; exit 0' TERM"
WAIT = "while :; do sleep 0.05; done"


class PreloadTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="wcp-")
        self.addCleanup(directory.cleanup)
        self.addCleanup(preload.kill_children)
        self.root = pathlib.Path(directory.name)
        (self.root / "bin").mkdir()
        before = os.environ.get("WCACHE_BIN_DIR")
        self.addCleanup(lambda: os.environ.pop("WCACHE_BIN_DIR") if before is None
                        else os.environ.__setitem__("WCACHE_BIN_DIR", before))
        os.environ["WCACHE_BIN_DIR"] = str(self.root / "bin")
        preload.adopt_orphans()
        preload.GONE_SECONDS = 0.5

    def program(self, *lines):
        path = self.root / "bin" / "wcache"
        path.write_text("\n".join(["#!/bin/bash", f"D={self.root}", *lines, ""]))
        path.chmod(0o755)

    def preload(self, **options):
        return preload.Preload(self.root, "/some/model", **options)

    def test_ready_and_gone(self):
        self.program(STOP, READY, WAIT)
        with self.preload() as served:
            self.assertEqual(served.paths, {"target": str(self.root / "mnt/target/abc")})
            self.assertEqual(served.fingerprints, {"target": "abc"})
        self.assertEqual(preload.children(), {})

    def test_a_process_that_escaped_is_found_and_ended(self):
        self.program("setsid -f sleep 1000", STOP, READY, WAIT)
        with self.assertRaisesRegex(preload.Failed, "left behind.*sleep 1000"):
            with self.preload():
                pass
        self.assertEqual(preload.children(), {})

    def test_a_socket_that_was_left_is_found(self):
        self.program('mkdir -p "$D/run" && touch "$D/run/x.sock"', STOP, READY, WAIT)
        with self.assertRaisesRegex(preload.Failed, "x.sock"):
            with self.preload():
                pass

    def test_an_end_before_ready_shows_its_reason(self):
        self.program("echo 'preload: corrupt: model.safetensors' >&2", "exit 1")
        with self.assertRaisesRegex(preload.Failed, "ended with 1 .*corrupt: model.safetensors"):
            with self.preload():
                pass

    def test_anything_but_ready_on_standard_output_is_refused(self):
        self.program("echo loading", STOP, READY, WAIT)
        with self.assertRaisesRegex(preload.Failed, "printed 'loading'"):
            with self.preload():
                pass
        self.assertEqual(preload.children(), {})

    def test_the_exit_status_after_sigterm_is_zero(self):
        self.program("trap 'rm -r \"$D/mnt\"; exit 143' TERM", READY, WAIT)
        with self.assertRaisesRegex(preload.Failed, "ended with 143 after SIGTERM"):
            with self.preload():
                pass

    def test_the_comparisons_own_failure_is_the_one_reported(self):
        self.program("setsid -f sleep 1000", STOP, READY, WAIT)
        with self.assertRaisesRegex(ValueError, "differs"):
            with self.preload():
                raise ValueError("differs")
        self.assertEqual(preload.children(), {})


if __name__ == "__main__":
    unittest.main()
