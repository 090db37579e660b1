#!/usr/bin/env python3
"""A draft's own group: preload of checkpoints with MTP layers, and what happens when one of the two groups fails."""

import ctypes
import filecmp
import json
import os
import pathlib
import re
import shutil
import signal
import tempfile

import harness
from harness import NodeTest, eventually, make_checkpoint, tensors_of, tensors_of_all

MTP = json.dumps({"method": "mtp", "num_speculative_tokens": 1})


class Drafts(NodeTest):
    # Family: how it is made, what its MTP tensors begin with, and the target's tensors that its loaders read.
    FAMILIES = {
        "mimo": (["--kind", "mimo"], "model.mtp_layers.", {"model.embed_tokens.weight", "lm_head.weight"}),
        "layers": (["--kind", "layers", "--decoy"], "model.layers.4.", set()),
        "mtp": (["--kind", "mtp"], "mtp.", {"model.embed_tokens.weight", "lm_head.weight"}),
    }

    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(tempfile.mkdtemp(prefix="wcd-"))
        cls.addClassCleanup(shutil.rmtree, cls.models, ignore_errors=True)
        cls.made = {name: make_checkpoint(cls.models / name, *options) for name, (options, _, _) in cls.FAMILIES.items()}
        cls.model = cls.made["mimo"]
        cls.small = make_checkpoint(cls.models / "small", "--kind", "tiny")

    def preload(self, model, *options, config=MTP, **where):
        return self.node.preload(model, "--speculative-config", config, *options, **where)

    def groups(self):
        return {group["role"]: group for group in self.node.status()["groups"]}

    def daemon_of(self, role):
        pids = [pid for pid, line in self.node.processes() if f"--role {role}" in line]
        return pids[0] if len(pids) == 1 else None

    def assert_draft(self, entry, model, prefix, shared):
        """The entry is the draft of `model`: its MTP tensors as they are there, and what the loaders read beside them."""
        source = tensors_of_all(model)
        draft = tensors_of(entry / "model.safetensors")
        own = {name for name in source if name.startswith(prefix)}
        self.assertTrue(own)
        self.assertLessEqual(own, set(draft))
        self.assertLessEqual(set(draft) - own, shared)
        for name, tensor in draft.items():
            self.assertTrue(tensor == source[name], name)
        self.assertFalse((entry / "model.safetensors.index.json").exists())
        for path in model.rglob("*"):
            name = path.relative_to(model)
            if path.is_file() and path.suffix != ".safetensors" and path.name != "model.safetensors.index.json":
                self.assertTrue(filecmp.cmp(path, entry / name, shallow=False), name)

    def test_three_families(self):
        for name, (_, prefix, shared) in self.FAMILIES.items():
            with self.subTest(name):
                model = self.made[name]
                preload = self.preload(model)
                ready = preload.ready_groups(2)
                target, target_path = ready["target"]
                draft, draft_path = ready["draft0"]
                self.assertEqual(target_path, self.node.mount / "target" / target)
                self.assertEqual(draft_path, self.node.mount / "draft0" / draft)
                self.assert_same_files(model, target_path)
                self.assert_draft(draft_path, model, prefix, shared)
                groups = self.groups()
                self.assertEqual({role: g["state"] for role, g in groups.items()}, {"target": "ready", "draft0": "ready"})
                self.assertEqual({g["name"] for g in groups.values()}, {name})
                self.assertEqual((groups["draft0"]["layout"], groups["draft0"]["fingerprint"]), ("mtp", draft))
                sockets = {role: pathlib.Path(g["ranks"][0]["socket"]).name for role, g in groups.items()}
                self.assertEqual(sockets, {"target": f"wcache_{target[:16]}_HOST-0.sock",
                                           "draft0": f"wcache_{draft[:16]}_HOST-0_draft0.sock"})
                routed = json.loads(self.node.run("route", model, "--speculative-config", MTP, "--json").stdout)
                self.assertEqual((routed["decision"], routed["fingerprint"], routed["path"], routed["socket"]),
                                 ("cache", draft, str(draft_path), groups["draft0"]["ranks"][0]["socket"]))
                self.assertEqual(preload.stop(), 0)
                self.assert_nothing_left()

    def test_shared_tensors_can_be_left_out(self):
        preload = self.preload(self.model, "--draft-shared", "omit", mount=[])
        self.assert_draft(preload.ready_groups(2)["draft0"][1], self.model, "model.mtp_layers.", set())

    def test_mtp_file_outside_the_index(self):
        model = make_checkpoint(self.models / "separate", "--kind", "mtp", "--mtp", "separate-file")
        preload = self.preload(model)
        self.assert_draft(preload.ready_groups(2)["draft0"][1], model, *self.FAMILIES["mtp"][1:])

    def test_a_draft_reads_its_own_bytes_only(self):
        model = make_checkpoint(self.models / "large", "--kind", "demo", "--size", "200M")
        self.node.environment["WCACHE_FILL_PATH"] = "threads"  # whose reads are counted in rchar
        self.preload(model).ready_groups(2)
        draft = self.groups()["draft0"]
        counted = int(re.search(r"rchar: (\d+)", pathlib.Path(f"/proc/{self.daemon_of('draft0')}/io").read_text()).group(1))
        self.assertGreater(counted, draft["nbytes"] * 0.95)
        self.assertLess(counted, draft["nbytes"] * 1.05 + (1 << 20), "headers and libraries aside")
        self.assertLess(draft["nbytes"], self.groups()["target"]["nbytes"] / 4)

    def test_no_draft_group(self):
        for config, why in [({"method": "draft_model", "model": str(self.small), "num_speculative_tokens": 2}, "disk"),
                            ({"method": "ngram", "num_speculative_tokens": 2}, "none"),
                            ({"method": "mtp", "num_speculative_tokens": 1, "draft_tensor_parallel_size": 1}, None)]:
            with self.subTest(why):
                preload = self.preload(self.model, config=json.dumps(config), mount=False)
                if why is None:
                    preload.ready_groups(2)
                else:
                    preload.ready()
                    self.assertIn(f"no draft0 group ({why})", preload.errors)
                    self.assertEqual(self.node.group()["role"], "target")
                self.assertEqual(preload.stop(), 0)

    def test_a_draft_with_a_checkpoint_of_its_own(self):
        config = json.dumps({"method": "draft_model", "model": str(self.small), "num_speculative_tokens": 2})
        preload = self.preload(self.model, "--draft-methods", "mtp,draft_model", "--name", "chat", config=config)
        ready = preload.ready_groups(2)
        self.assert_same_files(self.small, ready["draft0"][1])
        groups = self.groups()
        self.assertEqual((groups["target"]["name"], groups["draft0"]["name"]), ("chat", "small"))
        self.assertEqual((groups["draft0"]["layout"], groups["draft0"]["source"]), ("checkpoint", str(self.small)))
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left()

    def test_refused_before_anything_starts(self):
        bare = make_checkpoint(self.models / "bare", "--kind", "layers", "--mtp", "none")
        ports = ["--master-port", 4000, "--draft-master-port", 4000]
        for model, config, options, mention in [
            (self.model, "{", [], "speculative"),
            (self.model, '{"method": "magic"}', [], "magic"),
            (self.model, '{"method": "mtp", "tensor_parallel_size": 2}', [], "tensor_parallel_size"),
            (self.model, '{"method": "mtp", "draft_load_config": {"load_format": "ipc_cache"}}', [], "draft_load_config"),
            (bare, MTP, [], "model.layers.4."),
            (self.model, MTP, ports, "--draft-master-port"),
            (self.model, MTP, ["--master-port", 29502, "--weight-cache-draft-master-port", 29502], "--draft-master-port"),
            (self.model, MTP, ["--draft-methods", "telepathy"], "telepathy"),
            (self.model, MTP, ["--draft-shared", "maybe"], "maybe"),
            (self.model, MTP, ["--tensor-parallel-size", 0], "tensor parallel size"),
            (self.model, MTP, ["--nnodes", 2], "--tensor-parallel-size"),
            (self.model, MTP, ["--nnodes", 2, "--tensor-parallel-size", 2], "--master-addr"),
            (self.model, MTP, ["--nnodes", 2, "--tensor-parallel-size", 2, "--master-addr", "127.0.0.1"],
             "--rendezvous-token-file"),
        ]:
            with self.subTest(f"{config} {options}"):
                preload = self.preload(model, *options, config=config)
                self.assertEqual(preload.wait(), 2, preload.errors)
                self.assertIn(mention, preload.errors)
                self.assertEqual(preload.output, b"")
                self.assertEqual(self.node.leftovers(), [])

    def test_the_draft_fails_and_the_target_serves(self):
        needed = self.node.preload(self.model, mount=False)
        needed.ready()
        size = self.node.group()["nbytes"]
        self.assertEqual(needed.stop(), 0)
        preload = self.preload(self.model, "--memory-limit", size + (1 << 20))
        _, _, path = preload.ready()
        eventually(lambda: "FAILED" in preload.errors, lambda: preload.errors)
        self.assertRegex(preload.errors, r"FAILED draft0 over-budget: .*--memory-limit leaves")
        self.assert_same_files(self.model, path)
        states = {role: group["state"] for role, group in self.groups().items()}
        self.assertEqual(states, {"target": "ready", "draft0": "failed"})
        # Another preload tries the draft again, and stays for it.
        again = self.preload(self.model, mount=[])
        again.ready_groups(2)
        self.assertEqual(preload.stop(), 0)
        self.assertEqual(again.stop(), 0)
        self.assert_nothing_left(logs=True)

    def test_the_target_fails_and_the_draft_serves(self):
        model = make_checkpoint(self.models / "slow", "--kind", "demo", "--size", "400M")
        preload = self.preload(model)
        os.kill(eventually(lambda: self.daemon_of("target"), "the target's daemon"), signal.SIGKILL)
        role, _, path = preload.ready()
        self.assertEqual(role, "draft0")
        self.assertRegex(preload.errors, r"FAILED target internal: .*signal 9")
        self.assert_draft(path, model, "model.mtp_layers.", self.FAMILIES["mimo"][2])
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left(logs=True)

    def test_both_fail_with_the_first_error(self):
        preload = self.preload(self.model, "--memory-limit", "4K")
        self.assertEqual(preload.wait(), 7)
        self.assertRegex(preload.errors, r"FAILED target over-budget[^$]*FAILED draft0 over-budget")
        self.assertEqual(preload.output, b"")
        self.assert_nothing_left(logs=True)

    def test_the_library_decides_as_the_command_does(self):
        model = make_checkpoint(self.node.root / "m", "--kind", "mimo")
        library = ctypes.CDLL(harness.BIN.parent / "lib" / "libwcache.so")
        library.wcache_last_message.restype = ctypes.c_char_p
        library.wcache_route.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int,
                                         ctypes.POINTER(ctypes.c_void_p)]

        def route(spec, no_read=0):
            text = ctypes.c_void_p()
            code = library.wcache_route(os.fsencode(model), spec.encode(), 1, os.fsencode(self.node.run_dir), no_read,
                                        ctypes.byref(text))
            if code:
                return code, library.wcache_last_message().decode()
            found = json.loads(ctypes.string_at(text))
            library.wcache_route_free(text)
            return code, found

        for options in ([], ["--no-read"]):
            told = json.loads(self.node.run("route", model, "--speculative-config", MTP, "--json", *options).stdout)
            self.assertEqual(route(MTP, len(options)), (0, told))
        code, message = route('{"method": "warp"}')
        self.assertEqual(code, 1)
        self.assertIn("warp", message)

    def test_target_and_draft_name_each_other(self):
        preload = self.preload(self.model)
        ready = preload.ready_groups(2)
        target, draft = ready["target"][1], ready["draft0"][1]

        def named():
            try:
                return (os.getxattr(target, "user.wcache.draft").decode(), os.getxattr(draft, "user.wcache.target").decode())
            except OSError:
                return None
        eventually(lambda: named() == (str(draft), str(target)), lambda: f"they name each other: {named()}")
        self.assertIn("user.wcache.draft", os.listxattr(target))
        self.assertNotIn("user.wcache.target", os.listxattr(target))
        groups = self.groups()
        self.assertEqual((groups["target"]["draft"], groups["draft0"]["target"]), (str(draft), str(target)))
        # Another wcachefs is told again.
        os.kill(self.node.pid_of("wcachefs"), signal.SIGKILL)
        eventually(lambda: named() == (str(draft), str(target)), lambda: f"they name each other again: {named()}")
        self.assertEqual(self.node.run("evict", "mimo", "--role", "draft0").returncode, 0)
        with self.assertRaises(OSError):
            os.getxattr(target, "user.wcache.draft")
        self.assertNotIn("draft", self.node.group())
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left()

    def test_served_by_others_and_evicted(self):
        first = self.preload(self.model)
        ready = first.ready_groups(2)
        again = self.preload(self.model)
        self.assertEqual(again.wait(), 0, again.errors)
        self.assertEqual(sorted(again.output.splitlines()), sorted(first.output.splitlines()))
        notes = re.findall(r"^wcache: .*already served by pid", again.errors, re.MULTILINE)
        self.assertEqual(len(notes), 2, again.errors)
        self.assertEqual(self.node.run("evict", "mimo", "--role", "draft0").returncode, 0)
        eventually(lambda: "draft0" not in self.groups(), "the draft is gone")
        self.assert_same_files(self.model, ready["target"][1])
        self.assertIsNone(first.process.poll())
        self.assertEqual(self.node.run("evict", ready["target"][0]).returncode, 0)
        self.assertEqual(first.wait(), 0)
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
