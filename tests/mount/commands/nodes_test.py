#!/usr/bin/env python3
"""Groups on two nodes, which are two network namespaces with run directories and mounts of their own."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "fake_cuda"))
import harness
from fake_gpu import FakeGpu
from harness import Node, NodeTest, eventually, make_checkpoint

MTP = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
MASTER = "10.201.7.1"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """Two namespaces with a cable between them. 10.201.7.0/24 is seen by nobody else."""

    def __init__(self):
        self.names = [f"wcn{os.getpid()}{end}" for end in "ab"]
        for name in self.names:
            ip("netns", "add", name)
        cable = [f"{name}v" for name in self.names]
        ip("-n", self.names[0], "link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        ip("-n", self.names[0], "link", "set", cable[1], "netns", self.names[1])
        for i, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"10.201.7.{i + 1}/24", "dev", cable[i])
            ip("-n", name, "link", "set", cable[i], "up")
            ip("-n", name, "link", "set", "lo", "up")

    def inside(self, which):
        """The words before a command that is to run there; its mounts are seen here too."""
        return ["nsenter", f"--net=/run/netns/{self.names[which]}"]

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Nodes(NodeTest):
    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(tempfile.mkdtemp(prefix="wcn-"))
        cls.addClassCleanup(shutil.rmtree, cls.models, ignore_errors=True)
        cls.network = Network()
        cls.addClassCleanup(cls.network.remove)
        cls.sharded = make_checkpoint(cls.models / "sharded", "--kind", "sharded", "--tp", 4)
        cls.mimo = make_checkpoint(cls.models / "mimo", "--kind", "mimo")

    def setUp(self):
        self.nodes = [Node(), Node()]
        for node in self.nodes:
            self.addCleanup(node.clean_up)
            node.environment["WCACHE_RENDEZVOUS_TOKEN"] = "the token of these two"

    def preload(self, which, model, ranks, *options, timeout=harness.WAIT):
        return self.nodes[which].preload(
            model, "--tensor-parallel-size", ranks, "--nnodes", 2, "--node-rank", which, "--master-addr", MASTER,
            "--timeout", timeout, *options, prefix=self.network.inside(which))

    def both(self, model, ranks, *options):
        return [self.preload(which, model, ranks, *options) for which in (0, 1)]

    def assert_nothing_left(self, logs=False):
        for node in self.nodes:
            eventually(lambda: not node.leftovers(logs), lambda: node.leftovers(logs), 10)

    def stop(self, preloads):
        for preload in preloads:
            self.assertEqual(preload.stop(), 0)

    def sockets(self, which, state):
        """Local ports of TCP sockets in this state of the kernel's table."""
        text = subprocess.run([*self.network.inside(which), "cat", "/proc/net/tcp"], capture_output=True, text=True,
                              check=True).stdout
        return {int(row.split()[1].split(":")[1], 16) for row in text.splitlines()[1:] if row.split()[3] == state}

    def listeners(self, which):
        return self.sockets(which, "0A")

    def test_each_node_shows_its_own_ranks_of_one_group(self):
        first = self.preload(0, self.sharded, 4)
        # The other comes later; meanwhile nothing is ready, and the first says what it waits for.
        eventually(lambda: "waiting for the other nodes" in first.errors, lambda: first.errors)
        self.assertEqual(self.nodes[0].run("wait", "--timeout", 0).returncode, 5)
        self.assertEqual(self.listeners(0), {29501})
        second = self.preload(1, self.sharded, 4)
        (_, one, one_path), (_, two, two_path) = first.ready(), second.ready()
        self.assertEqual(one, two)
        self.assertEqual(self.listeners(0) | self.listeners(1), set())
        for node, path, ranks in ((self.nodes[0], one_path, (0, 1)), (self.nodes[1], two_path, (2, 3))):
            self.assertEqual(path, node.mount / "target" / one)
            self.assertEqual(sorted(p.name for p in path.glob("*.safetensors")),
                             [f"model-rank-{rank}-part-{part}.safetensors" for rank in ranks for part in (0, 1)])
            for file in (p for p in path.iterdir() if p.is_file()):
                self.assertEqual(file.read_bytes(), (self.sharded / file.name).read_bytes(), file.name)
            group = node.group()
            self.assertEqual((group["state"], [rank["rank"] for rank in group["ranks"]]), ("ready", list(ranks)))
        whole = self.nodes[0].run("fingerprint", self.sharded, "--tensor-parallel-size", 4).stdout.splitlines()[0]
        self.assertEqual(whole, one)
        self.stop((first, second))
        self.assert_nothing_left()

    def test_target_and_draft_meet_at_ports_of_their_own(self):
        preloads = self.both(self.mimo, 2, "--speculative-config", MTP, "--master-port", 4100)
        ready = [preload.ready_groups(2) for preload in preloads]
        for role in ("target", "draft0"):
            self.assertEqual(ready[0][role][0], ready[1][role][0])
        self.assertEqual([r["device_uuid"] for g in self.nodes[1].status()["groups"] for r in g["ranks"]], ["HOST-0"] * 2)
        self.stop(preloads)
        self.assert_nothing_left()

    def test_ranks_on_devices_of_two_nodes(self):
        """Each node has a device for its rank, and all hold the same."""
        with FakeGpu(str(harness.BIN.parent / "tests" / "libwcache_fake_cuda.so")) as gpu:
            for node in self.nodes:
                node.environment.update({name: value for name, value in gpu.environment().items() if "CUDA" in name})
            preloads = self.both(self.mimo, 2, "--device", "cuda", "--speculative-config", MTP)
            ready = [preload.ready_groups(2) for preload in preloads]
            for role in ("target", "draft0"):
                self.assertEqual(ready[0][role][0], ready[1][role][0])
            self.assertEqual(self.nodes[0].run("fingerprint", self.mimo).stdout.splitlines()[0], ready[0]["target"][0])
            for rank, node in enumerate(self.nodes):
                self.assert_same_files(self.mimo, ready[rank]["target"][1])
                self.assertEqual([(r["rank"], r["device_uuid"]) for g in node.status()["groups"] for r in g["ranks"]],
                                 [(rank, "GPU-" + gpu.default_uuid(0))] * 2)
            self.stop(preloads)
            self.assert_nothing_left()
            self.assertEqual(gpu.errors(), "")

    def test_a_node_that_never_comes(self):
        for which, words in ((0, "node 1 never came"), (1, f"node 0 never answered at {MASTER}:29501")):
            with self.subTest(which):
                alone = self.preload(which, self.sharded, 4, timeout=2)
                self.assertEqual(alone.wait(), 5, alone.errors)
                self.assertRegex(alone.errors, f"FAILED target timeout: .*{words}")
                self.assertEqual(alone.output, b"")
        self.assert_nothing_left(logs=True)

    def test_a_node_that_disagrees(self):
        other = self.models / "other"
        shutil.copytree(self.sharded, other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "changed": True}))
        preloads = [self.preload(0, self.sharded, 4), self.preload(1, other, 4)]
        for preload in preloads:
            self.assertEqual(preload.wait(), 4, preload.errors)
            self.assertRegex(preload.errors, "FAILED target mismatch: .*node 1.*disagree in .*config.json")
            self.assertEqual(preload.output, b"")
        self.assert_nothing_left(logs=True)

    def held_up(self, which):
        """A preload on one node and its second rank's daemon, which is stopped: the group agrees, and is not ready."""
        preload = self.preload(which, self.sharded, 4)
        eventually(lambda: "waiting for the other nodes" in preload.errors, lambda: preload.errors)
        pid = next(pid for pid, line in self.nodes[which].processes() if f"--rank {2 * which + 1} " in line)
        os.kill(pid, signal.SIGSTOP)
        return preload, pid

    def meet(self, which):
        """The other node's preload, which has met the first and waits for it."""
        preload = self.preload(which, self.sharded, 4)
        eventually(lambda: 29501 in self.sockets(0, "01"), "they have met")
        eventually(lambda: "waiting for the other nodes" in preload.errors, lambda: preload.errors)
        return preload

    def test_a_node_that_dies(self):
        for which in (0, 1):
            with self.subTest(which):
                dying, pid = self.held_up(which)
                living = self.meet(1 - which)
                dying.process.kill()
                dying.wait()
                self.assertEqual(living.wait(), 1, living.errors)
                self.assertRegex(living.errors, f"FAILED target io: .*node {which}.*went away before the group was ready")
                os.kill(pid, signal.SIGCONT)
                mine = lambda: [pid for pid, line in self.nodes[which].processes() if "--grouped" in line]
                eventually(lambda: not mine(), "its daemons end too")
                for node in self.nodes:
                    node.clean_up()
                self.setUp()

    def test_a_rank_that_dies_fails_both_nodes_with_its_name(self):
        second, pid = self.held_up(1)
        first = self.meet(0)
        os.kill(pid, signal.SIGKILL)
        for preload in (first, second):
            self.assertEqual(preload.wait(), 1, preload.errors)
            self.assertRegex(preload.errors, "FAILED target internal: .*rank 3 .*signal 9")
        self.assertRegex(first.errors, "node 1, ranks 2-3: ")
        self.assert_nothing_left(logs=True)

    def test_stopping_one_before_ready_is_told_to_the_other(self):
        second, pid = self.held_up(1)
        first = self.meet(0)
        second.process.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(), 3, first.errors)
        self.assertRegex(first.errors, "FAILED target evicted: .*node 1.*was stopped before the group was ready")
        os.kill(pid, signal.SIGCONT)
        self.assertEqual(second.wait(), 128 + signal.SIGTERM)
        self.assert_nothing_left(logs=True)

    def test_a_wrong_token_is_never_let_in(self):
        self.nodes[1].environment["WCACHE_RENDEZVOUS_TOKEN"] = "guessed"
        preloads = [self.preload(0, self.sharded, 4, timeout=4), self.preload(1, self.sharded, 4, timeout=4)]
        codes = [preload.wait() for preload in preloads]
        self.assertEqual(codes[0], 5, preloads[0].errors)
        self.assertIn("node 1 never came", preloads[0].errors)
        self.assertIn(codes[1], (1, 5))
        self.assertIn("token", preloads[1].errors)
        self.assert_nothing_left(logs=True)

    def test_the_token_comes_from_a_file_and_strangers_block_nobody(self):
        file = self.models / "token"
        file.write_text("another token\n")
        for node in self.nodes:
            del node.environment["WCACHE_RENDEZVOUS_TOKEN"]
        first = self.preload(0, self.sharded, 4, "--rendezvous-token-file", file)
        eventually(lambda: 29501 in self.listeners(0), "node 0 listens")
        strangers = subprocess.Popen([*self.network.inside(1), sys.executable, "-c", f"""
import socket, time
held = [socket.create_connection(("{MASTER}", 29501)) for _ in range(80)]
held[0].sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
time.sleep(60)
"""], stderr=subprocess.DEVNULL)
        self.addCleanup(strangers.wait)
        self.addCleanup(strangers.kill)
        time.sleep(0.5)
        second = self.preload(1, self.sharded, 4, "--rendezvous-token-file", file)
        self.assertEqual(first.ready()[1], second.ready()[1])
        self.stop((first, second))

    def test_a_taken_port_fails_its_group_alone(self):
        taken = subprocess.Popen([*self.network.inside(0), sys.executable, "-c", f"""
import socket, time
taken = socket.create_server(("{MASTER}", 29502))
print("taken", flush=True)
time.sleep(60)
"""], stdout=subprocess.PIPE, text=True)
        self.addCleanup(taken.stdout.close)
        self.addCleanup(taken.wait)
        self.addCleanup(taken.kill)
        taken.stdout.readline()
        preloads = self.both(self.mimo, 2, "--speculative-config", MTP)
        self.assertEqual(preloads[0].ready()[0], "target")
        self.assertEqual(preloads[1].ready()[0], "target")
        eventually(lambda: "FAILED" in preloads[0].errors, lambda: preloads[0].errors)
        self.assertRegex(preloads[0].errors, f"FAILED draft0 busy: port {MASTER}:29502 is taken")
        self.assertEqual({g["role"]: g["state"] for g in self.nodes[0].status()["groups"]},
                         {"target": "ready", "draft0": "failed"})


if __name__ == "__main__":
    tried = subprocess.run(["ip", "netns", "add", f"wcn{os.getpid()}try"], capture_output=True) if shutil.which("ip") else None
    if tried is None or tried.returncode != 0:
        print("skipped: network namespaces cannot be made" if tried else "skipped: ip(8) of iproute2 is not installed")
        sys.exit(77)
    ip("netns", "del", f"wcn{os.getpid()}try")
    harness.main()
