#!/usr/bin/env python3
"""Tests of the checkpoint tools themselves; the standard library alone."""

import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import safetensors_writer as st  # noqa: E402


def read_header(path):
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8:8 + length]), data[8 + length:]


def tree_digest(root):
    """Digest of every path, link and byte below a directory."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b"/")
    return digest.hexdigest()


class ToolsTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="wcache-tools-")
        self.addCleanup(self.directory.cleanup)
        self.root = pathlib.Path(self.directory.name)

    def make(self, name, *options, check=True):
        done = subprocess.run([sys.executable, HERE / "make_checkpoint.py", self.root / name, *options],
                              capture_output=True, text=True, check=False)
        if check:
            self.assertEqual(done.returncode, 0, done.stderr)
            return pathlib.Path(done.stdout.strip())
        return done

    def tensors(self, model):
        """All tensors of a directory: name -> (dtype, shape, bytes)."""
        out = {}
        for path in sorted(model.glob("*.safetensors")):
            header, data = read_header(path)
            for name, e in header.items():
                if name != "__metadata__":
                    begin, end = e["data_offsets"]
                    out[name] = (e["dtype"], e["shape"], data[begin:end])
        return out

    def test_same_options_same_bytes_and_another_seed_others(self):
        for kind in ("qwen3", "layers", "gguf", "sharded", "dtypes"):
            digests = [tree_digest(self.make(f"{kind}{i}", "--kind", kind, "--seed", seed))
                       for i, seed in enumerate(("1", "1", "2"))]
            self.assertEqual(digests[0], digests[1], kind)
            self.assertNotEqual(digests[0], digests[2], kind)

    def test_demo_has_about_the_size_asked_for_and_no_block_twice(self):
        model = self.make("demo", "--size", "16M", "--shards", "3")
        shards = sorted(model.glob("model-*.safetensors"))
        self.assertEqual(len(shards), 3)
        self.assertAlmostEqual(sum(s.stat().st_size for s in shards) / (16 << 20), 1, delta=0.1)
        data = b"".join(s.read_bytes() for s in shards)
        blocks = {data[i:i + 512] for i in range(0, len(data) - 511, 512)}
        self.assertEqual(len(blocks), len(data) // 512)
        index = json.loads((model / "model.safetensors.index.json").read_text())
        for shard in shards:
            header, _ = read_header(shard)
            named = {t for t, file in index["weight_map"].items() if file == shard.name}
            self.assertEqual(named, set(header) - {"__metadata__"})
        self.assertTrue(any(t.startswith("model.mtp_layers.0.") for t in index["weight_map"]))
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            json.loads((model / name).read_text())
        self.assertTrue((model / "assets" / "notes.txt").is_file())

    def test_decoy_layer_shares_the_digits_of_the_mtp_layer(self):
        names = self.tensors(self.make("l", "--kind", "layers", "--layers", "61", "--decoy", "--scales"))
        self.assertIn("model.layers.61.eh_proj.weight", names)
        self.assertIn("model.layers.61.eh_proj.weight_scale_inv", names)
        self.assertIn("model.layers.610.mlp.up_proj.weight", names)
        self.assertEqual(names["model.layers.61.eh_proj.weight"][0], "F8_E4M3")

    def test_mtp_tensors_are_where_the_option_says(self):
        inside = self.tensors(self.make("in", "--kind", "mtp"))
        nowhere = self.tensors(self.make("none", "--kind", "mtp", "--mtp", "none"))
        separate = self.make("sep", "--kind", "mtp", "--mtp", "separate-file")
        mtp = {n for n in inside if n.startswith("mtp.")}
        self.assertTrue(mtp)
        self.assertEqual(set(inside) - mtp, set(nowhere))
        self.assertEqual(set(read_header(separate / "mtp.safetensors")[0]) - {"__metadata__"}, mtp)
        index = json.loads((separate / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(nowhere))
        config = json.loads((self.make("nc", "--kind", "mtp", "--no-mtp-config") / "config.json").read_text())
        self.assertNotIn("num_nextn_predict_layers", config)

    def test_draft_holds_the_targets_mtp_tensors_unless_seeded_otherwise(self):
        target = self.tensors(self.make("t", "--kind", "mimo"))
        draft = self.tensors(self.make("d", "--kind", "draft"))
        other = self.tensors(self.make("o", "--kind", "draft", "--draft-seed", "9"))
        self.assertEqual(draft, {n: target[n] for n in draft})
        mtp = [n for n in draft if n.startswith("model.mtp_layers.0.")]
        self.assertTrue(mtp)
        self.assertTrue(all(other[n] != draft[n] for n in mtp))
        self.assertEqual(other["lm_head.weight"], draft["lm_head.weight"])

    def test_dtypes_cover_the_format_and_the_second_file_is_unaligned(self):
        model = self.make("dt", "--kind", "dtypes")
        tensors = self.tensors(model)
        self.assertEqual({t[0] for t in tensors.values()}, set(st.DTYPE_BITS))
        for name, (dtype, shape, data) in tensors.items():
            self.assertEqual(len(data), st.nbytes(dtype, shape), name)
        header, _ = read_header(model / "model-00002-of-00002.safetensors")
        self.assertTrue(all(header[f"odd.{d}"]["data_offsets"][0] % 2 for d in ("F32", "F64", "BF16")))

    def test_many_has_as_many_tensors_as_asked(self):
        self.assertEqual(len(self.tensors(self.make("m", "--kind", "many", "--tensors", "5000"))), 5000)

    def test_sharded_ranks_hold_different_bytes(self):
        model = self.make("s", "--kind", "sharded", "--tp", "4")
        first = [(model / f"model-rank-{r}-part-0.safetensors").read_bytes() for r in range(4)]
        self.assertEqual(len(set(first)), 4)

    def test_hub_layout_is_links_to_blobs_named_by_content(self):
        snapshot = self.make("hub", "--kind", "mimo", "--hub", "acme/MiMo-1B")
        repo = self.root / "hub" / "models--acme--MiMo-1B"
        self.assertEqual(snapshot.parent, repo / "snapshots")
        self.assertEqual((repo / "refs" / "main").read_text(), snapshot.name)
        for path in snapshot.rglob("*"):
            if path.is_dir():
                continue
            self.assertFalse(os.path.isabs(os.readlink(path)))
            blob = path.resolve()
            if path.suffix == ".safetensors":
                self.assertEqual(hashlib.sha256(blob.read_bytes()).hexdigest(), blob.name)
        self.assertEqual(self.tensors(snapshot), self.tensors(self.make("flat", "--kind", "mimo")))

    def test_what_is_there_is_never_overwritten(self):
        made = self.make("x", "--kind", "tiny")
        before = tree_digest(made)
        self.assertEqual(self.make("x", "--kind", "gguf", check=False).returncode, 1)
        self.assertEqual(self.make("x", "--kind", "gguf", "--if-missing"), made)
        self.assertEqual(tree_digest(made), before)
        self.assertEqual([p.name for p in self.root.iterdir()], ["x"])

    def test_a_checkpoint_that_cannot_be_made_leaves_nothing(self):
        done = self.make("y", "--kind", "qwen3", "--shards", "1000", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("1000 shards", done.stderr)
        self.assertEqual(list(self.root.iterdir()), [])

    def test_malformed_cases_are_all_written(self):
        out = self.root / "bad"
        subprocess.run([sys.executable, HERE / "malformed.py", out], check=True)
        cases = json.loads((out / "cases.json").read_text())
        for name, c in cases.items():
            self.assertTrue(c["ok"] or (c["reason"] and c["mentions"]), name)
        self.assertEqual({p.name for p in out.iterdir()} - set(cases) - {"cases.json"}, set())
        self.assertLess(sum(p.stat().st_size for p in out.rglob("*") if p.is_file()), 8 << 20)


if __name__ == "__main__":
    unittest.main()
