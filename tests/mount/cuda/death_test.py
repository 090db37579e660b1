#!/usr/bin/env python3
"""A daemon that is killed: what engines keep, what still can be attached to, and what is freed in the end."""

import errno
import os
import pathlib
import signal

import cuda_harness
from cuda_harness import CudaTest, attributes, digests_of, eventually


class Death(CudaTest):
    def served(self, ipc):
        model = self.make("mimo", "--kind", "mimo")
        preload = self.node.preload(model, "--device", "cuda", "--ipc", ipc)
        _, fingerprint, path = preload.ready()
        engine = self.engine(fingerprint)
        expected = digests_of(*model.glob("*.safetensors"))
        self.assertEqual(engine.answer(), expected)
        return preload, fingerprint, path, engine, expected

    def kill(self):
        os.kill(self.daemon_of(), signal.SIGKILL)

    def assert_io_error(self, path):
        with self.assertRaises(OSError) as caught:
            (path / "model-00001-of-00004.safetensors").read_bytes()
        self.assertEqual(caught.exception.errno, errno.EIO)

    def test_memory_shared_by_descriptors_lives_on(self):
        preload, fingerprint, path, engine, expected = self.served("vmm")
        self.kill()
        eventually(lambda: self.groups()["target"]["state"] == "orphaned", lambda: self.node.status())
        self.assertEqual(engine.ask("read"), expected, "what is mapped stays")
        self.assertEqual(engine.ask("open"), expected, "and the mount gives it to others")
        other = self.engine(path)
        self.assertEqual(other.answer(), expected)
        (rank,) = self.groups()["target"]["ranks"]
        self.assertGreater(rank["device_nbytes"], 0)
        if self.gpu:
            self.assertEqual(rank["device_nbytes"], self.gpu.used_bytes(0))
        file = attributes(path / "model-00001-of-00004.safetensors")
        self.assertEqual((file["state"], file["tier"], file["ipc_kind"]), (b"orphaned", b"cuda", b"cuda-vmm"))
        self.assert_io_error(path)
        self.assertTrue((path / "config.json").read_bytes())
        self.assertEqual(self.node.run("evict", fingerprint).returncode, 6)
        self.assertEqual(engine.stop(), 0)
        self.assertEqual(other.stop(), 0)
        eventually(lambda: self.node.run("evict", fingerprint).returncode == 0, "nobody holds it")
        self.assertFalse(path.exists())
        self.assertEqual(preload.wait(), 0)
        self.assert_nothing_left(logs=True)

    def test_memory_shared_by_handles_does_not(self):
        preload, fingerprint, path, engine, _ = self.served("legacy")
        self.kill()
        eventually(lambda: self.groups().get("target", {"state": "gone"})["state"] in ("orphaned", "gone", "failed"),
                   lambda: self.node.status())
        answer = engine.ask("open")
        self.assertIn(answer.get("error"), ("NotRunning", "NotFound"), answer)
        if path.exists():
            self.assert_io_error(path)
        engine.process.kill()
        engine.process.wait()
        preload.stop()
        self.assert_nothing_left(logs=True)

    def test_a_killed_mount_costs_no_engine_anything(self):
        preload, fingerprint, path, engine, expected = self.served("vmm")
        os.kill(self.node.pid_of("wcachefs"), signal.SIGKILL)
        self.assertEqual(engine.ask("read"), expected)
        self.assertEqual(engine.ask("open"), expected)
        eventually(lambda: os.access(path / "config.json", os.R_OK), "the mount is replaced")
        self.assert_same_files(pathlib.Path(self.made["mimo"]), path)
        self.assertEqual(engine.stop(), 0)
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left()


if __name__ == "__main__":
    cuda_harness.main()
