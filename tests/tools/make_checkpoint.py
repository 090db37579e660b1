#!/usr/bin/env python3
"""Makes a checkpoint for a test or a demonstration: deterministic, with the standard library alone.

The same options give the same bytes on every machine. The directory of the model is printed on standard output.

kinds:
  demo     Hugging Face layout as people have it: shards and index, a MiMo with an MTP layer, tokenizer, README, a
           sub-directory; --size, --shards
  qwen3    a small Qwen3 that real engines load
  mimo     a small MiMo that real engines load; its MTP layer (model.mtp_layers.0.) predicts every token rightly
  layers   DeepSeek-like: MTP as decoder layer N behind the last one; --layers, --decoy
  mtp      Qwen3-Next-like: MTP under mtp.; --layers
  draft    the MTP layer of the mimo kind in a directory of its own, with embedding and head
  sharded  one set of files for each tensor-parallel rank, model-rank-R-part-P.safetensors; --tp
  tiny     one model.safetensors of --size bytes
  many     one model.safetensors of --tensors small tensors
  dtypes   every dtype of safetensors; scalars, empty tensors, tensors at odd offsets
  names    tensor names that are hard to show as files
  gguf     one GGUF file: several ggml types, padding, metadata
  opaque   pytorch_model.bin and config.json
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

import families
import gguf_writer
import safetensors_writer as st
import values

FAMILIES = ("demo", "qwen3", "mimo", "layers", "mtp")


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not number.isdigit() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 256M")
    return int(number) * unit


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def byte_alphabet():
    """The characters that byte-level tokenizers write bytes as, in the order of their code points."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return sorted(map(chr, [*plain, *range(0x100, 0x100 + 256 - len(plain))]))


def write_tokenizer(out):
    """A byte-level tokenizer of 256 bytes and one special token, as the tokenizers library reads it."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    write_json(out / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {c: i for i, c in enumerate(byte_alphabet())}, "merges": []}})
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "model_max_length": 512, "clean_up_tokenization_spaces": False})


def write_side_files(out, args):
    write_tokenizer(out)
    write_json(out / "generation_config.json", {"eos_token_id": 256, "pad_token_id": 256})
    (out / "README.md").write_text(f"# A generated checkpoint\n\nKind {args.kind}, seed {args.seed}. Its weights are random.\n")
    (out / "assets").mkdir()
    (out / "assets" / "notes.txt").write_text("A file in a sub-directory.\n")


def write_clutter(out, seed):
    """What lies in real directories beside the weights and is not to be served."""
    make = families.Random(f"{seed}/clutter", "BF16")
    st.write(out / "consolidated.safetensors", [make.one("tok_embeddings.weight", (64, 64))])
    (out / "original").mkdir()
    for name in ("pytorch_model.bin", "training.pt", "original/consolidated.00.pth"):
        (out / name).write_bytes(values.random_bytes(4096, seed, name))
    for name in (".git", ".cache"):
        (out / name).mkdir()
        (out / name / "config").write_text("not part of the model\n")


def family(args):
    make = families.Random(args.seed, "BF16", args.scales)
    if args.kind == "demo":
        return families.demo(make, args.size)
    if args.kind == "qwen3":
        return families.qwen3(args.seed)
    if args.kind == "mimo":
        return families.mimo(args.seed, args.draft_seed)
    if args.kind == "layers":
        return families.deepseek(make, args.layers, args.decoy)
    return families.qwen3_next(make, args.layers)


def make_family(out, args):
    model = family(args)
    tensors = list(model.tensors)
    if args.mtp == "in-index":
        # Not at the end: a draft's ranges then lie between the target's.
        middle = len(tensors) // 2
        tensors[middle:middle] = model.mtp
    elif args.mtp == "separate-file" and model.mtp:
        st.write(out / "mtp.safetensors", model.mtp, {"format": "pt"})
    st.write_sharded(out, tensors, args.shards)
    config = dict(model.config)
    if args.no_mtp_config:
        config.pop("num_nextn_predict_layers", None)
    write_json(out / "config.json", config)
    write_side_files(out, args)


def make_draft(out, args):
    model = families.mimo(args.seed, args.draft_seed)
    shared = [t for t in model.tensors if t.name in ("model.embed_tokens.weight", "lm_head.weight")]
    st.write(out / "model.safetensors", [*model.mtp, *shared], {"format": "pt"})
    write_json(out / "config.json", model.config)


def make_sharded(out, args):
    d = families.Dims(hidden=256, intermediate=512, heads=16, kv_heads=16, head_dim=16, layers=args.layers)
    make = families.Random(args.seed, "BF16")
    for rank in range(args.tp):
        tensors = families.sharded_rank(make, d, rank, args.tp)
        half = len(tensors) // 2
        for part, chunk in enumerate((tensors[:half], tensors[half:])):
            st.write(out / f"model-rank-{rank}-part-{part}.safetensors", chunk, {"format": "pt"})
    write_json(out / "config.json", families.config(d, make, "qwen2", "Qwen2ForCausalLM"))
    write_side_files(out, args)


def make_tiny(out, args):
    make = families.Random(args.seed, "BF16")
    rows = max(1, (args.size - 512) // 512)
    st.write(out / "model.safetensors", [make.one("model.embed_tokens.weight", (rows, 256))], {"format": "pt"})
    write_json(out / "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256})


def make_many(out, args):
    raw = values.tensor_bytes("BF16", 16 * args.tensors, args.seed, "many")
    tensors = [st.Tensor(f"model.layers.{i // 1000}.experts.{i % 1000}.weight", "BF16", (2, 4), raw[16 * i:16 * i + 16])
               for i in range(args.tensors)]
    st.write(out / "model.safetensors", tensors, {"format": "pt"}, order="given")
    write_json(out / "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4})


def make_dtypes(out, args):
    make = families.Random(args.seed, "U8")
    plain, odd = [], [make.one("odd.first", (3,))]
    for dtype, bits in st.DTYPE_BITS.items():
        plain += [make.one(f"plain.{dtype}", (4, 6), dtype), make.one(f"empty.{dtype}", (2, 0), dtype)]
        odd.append(make.one(f"odd.{dtype}", (4, 3) if bits >= 8 else (4, 2), dtype))
        if bits >= 8:
            plain.append(make.one(f"scalar.{dtype}", (), dtype))
    st.write(out / "model-00001-of-00002.safetensors", plain, {"format": "pt"})
    # In the order given behind three bytes, after a header of any length: no tensor is where its dtype wants it.
    st.write(out / "model-00002-of-00002.safetensors", odd, order="given", pad=1)
    weight_map = {t.name: f"model-0000{i}-of-00002.safetensors" for i, part in ((1, plain), (2, odd)) for t in part}
    write_json(out / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    write_json(out / "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})


def make_names(out, args):
    make = families.Random(args.seed, "BF16")
    names = ["", ".", "..", "a/b", "/", "100%", "%2F", "%", "nul\0inside", "white space", "tab\tname", "line\nbreak",
             '"quoted"', "back\\slash", "ünïcode.重み", "-rf", "x" * 255, "x" * 256, "y" * 300, "a" * 253 + "/b"]
    st.write(out / "model.safetensors", [make.one(name, (2, 4)) for name in names], {"format": "pt"})
    write_json(out / "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})


def make_gguf(out, args):
    tensors = []
    for i, (kind, dims) in enumerate([("F32", (33,)), ("F16", (64, 5)), ("Q4_0", (64, 4)), ("Q4_1", (32, 3)),
                                      ("Q8_0", (96, 2)), ("Q4_K", (256, 3)), ("Q6_K", (512, 1)), ("I8", (7,)),
                                      ("I32", (3, 2, 2)), ("BF16", (16, 4, 2))]):
        name = f"blk.{i}.{kind.lower()}.weight"
        size = gguf_writer.nbytes(kind, dims)
        tensors.append(gguf_writer.Tensor(name, kind, dims, values.tensor_bytes(kind, size, args.seed, name)))
    gguf_writer.write(out / "model.gguf", tensors, {
        "general.architecture": "llama", "general.name": "generated", "general.file_type": 2, "llama.block_count": 10,
        "llama.rope.freq_base": 10000.0, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "ü"], "tokenizer.ggml.token_type": [3, 3, 1, 1],
        "general.parameter_count": 1 << 33}, args.alignment)


def make_opaque(out, args):
    (out / "pytorch_model.bin").write_bytes(values.random_bytes(args.size, args.seed, "opaque"))
    write_json(out / "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})


MAKERS = {**dict.fromkeys(FAMILIES, make_family), "draft": make_draft, "sharded": make_sharded, "tiny": make_tiny,
          "many": make_many, "dtypes": make_dtypes, "names": make_names, "gguf": make_gguf, "opaque": make_opaque}
SIZES = {"demo": 256 << 20, "tiny": 64 << 10, "opaque": 64 << 10}
SHARDS = {"demo": 4, "qwen3": 4, "mimo": 4, "layers": 2, "mtp": 2}


def to_hub(flat, cache, repository):
    """Lays a directory out as the hub's cache does, blobs and links; returns the snapshot."""
    repo = cache / ("models--" + repository.replace("/", "--"))
    commit = hashlib.sha1(repository.encode()).hexdigest()
    snapshot = repo / "snapshots" / commit
    for sub in ("blobs", "refs"):
        (repo / sub).mkdir(parents=True)
    for path in sorted(p for p in flat.rglob("*") if p.is_file()):
        data = path.read_bytes()
        small = path.suffix not in (".safetensors", ".bin", ".gguf", ".pt", ".pth")
        digest = hashlib.sha1(b"blob %d\0" % len(data) + data) if small else hashlib.sha256(data)
        blob = repo / "blobs" / digest.hexdigest()
        link = snapshot / path.relative_to(flat)
        link.parent.mkdir(parents=True, exist_ok=True)
        path.replace(blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (repo / "refs" / "main").write_text(commit)
    return snapshot


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=pathlib.Path, help="the directory to make; it must not exist")
    parser.add_argument("--kind", choices=MAKERS, default="demo", help="what to make (default demo)", metavar="KIND")
    parser.add_argument("--seed", default="1", help="another seed gives other bytes (default 1)")
    parser.add_argument("--size", type=parse_size, help="of demo (about), tiny and opaque; takes K, M, G, T")
    parser.add_argument("--shards", type=int, help="number of files of a Hugging Face layout")
    parser.add_argument("--layers", type=int, default=4, help="decoder layers of layers, mtp, sharded (default 4)")
    parser.add_argument("--decoy", action="store_true", help="layers: add layer N0 beside MTP layer N (610 beside 61)")
    parser.add_argument("--scales", action="store_true", help="demo, layers, mtp: 8-bit projections with weight_scale_inv")
    parser.add_argument("--mtp", choices=("in-index", "separate-file", "none"), default="in-index",
                        help="where the MTP tensors are: in the index's files, in mtp.safetensors outside it, nowhere")
    parser.add_argument("--no-mtp-config", action="store_true", help="leave the number of MTP layers out of config.json")
    parser.add_argument("--draft-seed", help="mimo, draft: an MTP layer with other weights, which predicts nothing rightly")
    parser.add_argument("--clutter", action="store_true", help="add files that engines leave out, .git and .cache")
    parser.add_argument("--tp", type=int, default=2, help="sharded: number of ranks (default 2)")
    parser.add_argument("--tensors", type=int, default=200000, help="many: number of tensors (default 200000)")
    parser.add_argument("--alignment", type=int, default=32, help="gguf: alignment of tensors (default 32)")
    parser.add_argument("--hub", metavar="ORG/NAME", help="make OUT a hub cache that holds this repository")
    parser.add_argument("--if-missing", action="store_true", help="leave an OUT that is there as it is (it is never half made)")
    args = parser.parse_args(argv)
    args.size = args.size or SIZES.get(args.kind)
    args.shards = args.shards or SHARDS.get(args.kind, 1)
    return args


def main(argv=None):
    args = parse(argv)
    if args.out.exists():
        if not args.if_missing:
            sys.exit(f"make_checkpoint: {args.out} is there already")
        print(next(args.out.glob("models--*/snapshots/*")) if args.hub else args.out)
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=f".{args.out.name}.", dir=args.out.parent))
    try:
        model = work / "model"
        model.mkdir()
        MAKERS[args.kind](model, args)
        if args.clutter:
            write_clutter(model, args.seed)
        made, inside = model, pathlib.Path()
        if args.hub:
            made = work / "hub"
            inside = to_hub(model, made, args.hub).relative_to(made)
        made.rename(args.out)
        print(args.out / inside)
    except ValueError as e:
        sys.exit(f"make_checkpoint: {e}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
