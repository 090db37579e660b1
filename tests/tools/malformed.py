#!/usr/bin/env python3
"""Writes checkpoints that are broken, each in one way, and a few that look broken and are not.

    malformed.py OUT

OUT/<case>/ is a model directory; OUT/cases.json says what is to become of each:

    {case: {"model": path of the model argument, relative to OUT,
            "ok": whether it is to be served,
            "reason": the error's reason where it is not,
            "mentions": a file name (or the argument) that the message must hold,
            "library": what the safetensors library says of the file ("accepts" or its error's name), where it was made for it,
            "needs": "non-root" where root would not see the fault}}
"""

import argparse
import json
import os
import pathlib
import struct
import tempfile

import gguf_writer
import safetensors_writer as st

LIMIT = 100_000_000  # longest header the format allows
FOUR = bytes(range(4))
CASES = {}


def case(name, ok=False, reason="corrupt", mentions="model.safetensors", model=None, library=None, needs=None):
    """Registers the decorated function as the maker of one case's directory."""
    entry = {"model": model or name, "ok": ok}
    if not ok:
        entry.update(reason=reason, mentions=mentions)
    if library:
        entry["library"] = library
    if needs:
        entry["needs"] = needs

    def add(make):
        CASES[name] = (entry, make)
        return make

    return add


def file_case(name, content, library, ok=None):
    """A case whose model.safetensors is these bytes. `ok` says where we differ from the library."""
    accepted = library == "accepts" if ok is None else ok

    @case(name, ok=accepted, library=library)
    def _(d):
        (d / "model.safetensors").write_bytes(content)


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def text(*pairs):
    """A header with repeated keys, which a JSON object cannot hold."""
    return "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in pairs) + "}"


def raw_entry(dtype='"U8"', shape="[4]", offsets="[0,4]", more=""):
    return '{"a":{"dtype":%s,"shape":%s,"data_offsets":%s%s}}' % (dtype, shape, offsets, more)


JSON = "InvalidHeaderDeserialization"

# Length and frame.
file_case("zero-length", b"", "HeaderTooSmall")
file_case("seven-bytes", b"\x02\0\0\0\0\0\0", "HeaderTooSmall")
file_case("length-all-ones", b"\xff" * 8 + b"{}", "HeaderTooLarge")
file_case("length-over-limit", struct.pack("<Q", LIMIT + 1) + b"{}", "HeaderTooLarge")
file_case("length-at-limit-without-body", struct.pack("<Q", LIMIT) + b"{}", "InvalidHeaderLength")
file_case("length-without-body", struct.pack("<Q", 16), "InvalidHeaderLength")
file_case("length-one-too-long", struct.pack("<Q", 9) + b"{}      ", "InvalidHeaderLength")
file_case("length-zero", bytes(8), JSON)
file_case("git-lfs-pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 +
          b"\nsize 4976698672\n", "HeaderTooLarge")
file_case("html-page", b"<!DOCTYPE html>\n<html><head><title>403 Forbidden</title></head></html>\n", "HeaderTooLarge")

# The header's text.
file_case("header-is-0xff", st.frame(b"\xff", pad=1), "InvalidHeader")
file_case("header-bad-utf8-in-name", st.frame(b'{"\xc3(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', FOUR),
          "InvalidHeader")
file_case("header-lone-brace", st.frame("{", pad=1), JSON)
file_case("header-cut-off", st.frame('{"a":{"dtype":"U8","shape":[4],"data_off', FOUR), JSON)
file_case("header-is-array", st.frame("[]"), JSON)
file_case("header-trailing-text", st.frame("{} x"), JSON)
file_case("header-metadata-after-object", st.frame('{},"__metadata__":{"format":"pt"}}'), JSON)
file_case("header-trailing-comma", st.frame('{"a":' + json.dumps(entry()) + ",}", FOUR), JSON)
file_case("header-byte-order-mark", st.frame(b"\xef\xbb\xbf{}"), JSON)
file_case("header-nul-padding", st.frame(b"{}" + bytes(6)), JSON)
file_case("header-deep-nesting", st.frame('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), JSON)
file_case("header-lone-surrogate", st.frame('{"\\ud800":' + json.dumps(entry()) + "}", FOUR), JSON)

# Entries.
file_case("dtype-unknown", st.frame({"a": entry("F7")}, FOUR), JSON)
file_case("dtype-lower-case", st.frame({"a": entry("u8")}, FOUR), JSON)
file_case("dtype-number", st.frame(raw_entry(dtype="8"), FOUR), JSON)
file_case("dtype-missing", st.frame('{"a":{"shape":[4],"data_offsets":[0,4]}}', FOUR), JSON)
file_case("shape-missing", st.frame('{"a":{"dtype":"U8","data_offsets":[0,4]}}', FOUR), JSON)
file_case("shape-negative", st.frame(raw_entry(shape="[-4]"), FOUR), JSON)
file_case("shape-fraction", st.frame(raw_entry(shape="[4.5]"), FOUR), JSON)
file_case("shape-string", st.frame(raw_entry(shape='["4"]'), FOUR), JSON)
file_case("shape-over-64-bits", st.frame(raw_entry(shape="[18446744073709551616]"), FOUR), JSON)
file_case("offsets-missing", st.frame('{"a":{"dtype":"U8","shape":[4]}}', FOUR), JSON)
file_case("offsets-negative", st.frame(raw_entry(offsets="[-4,0]"), FOUR), JSON)
file_case("offsets-fraction", st.frame(raw_entry(offsets="[0,4.0]"), FOUR), JSON)
file_case("offsets-one", st.frame(raw_entry(offsets="[0]"), FOUR), JSON)
file_case("offsets-three", st.frame(raw_entry(offsets="[0,4,8]"), FOUR), JSON)
file_case("entry-is-null", st.frame('{"a":null}'), JSON)

# The chain of offsets.
file_case("hole-at-start", st.frame({"a": entry(offsets=(4, 8))}, bytes(8)), "InvalidOffset")
file_case("hole-between", st.frame({"a": entry(), "b": entry(offsets=(5, 9))}, bytes(9)), "InvalidOffset")
file_case("overlap", st.frame({"a": entry(), "b": entry(offsets=(3, 7))}, bytes(7)), "InvalidOffset")
file_case("end-before-begin", st.frame({"a": entry(), "b": entry(shape=(0,), offsets=(4, 3))}, FOUR), "InvalidOffset")
file_case("ten-tensors-one-range", st.frame({f"t{i}": entry() for i in range(10)}, FOUR), "InvalidOffset")
file_case("offsets-huge", st.frame({"a": entry(shape=(2**40,), offsets=(0, 2**40))}, FOUR), "MetadataIncompleteBuffer")
file_case("two-bytes-missing", st.frame({"a": entry()}, FOUR[:2]), "MetadataIncompleteBuffer")
file_case("extra-bytes", st.frame({"a": entry()}, FOUR + b"PK"), "MetadataIncompleteBuffer")
file_case("no-tensors-extra-bytes", st.frame("{}", b"x"), "MetadataIncompleteBuffer")

# Sizes.
file_case("shape-overflows", st.frame({"a": entry(shape=(2, 2**64 - 2))}, FOUR), "ValidationOverflow")
file_case("bits-overflow", st.frame({"a": entry("I32", (2, 2**63 - 1))}, FOUR), "ValidationOverflow")
file_case("size-too-small", st.frame({"a": entry("I32", (2, 2))}, FOUR), "TensorInvalidInfo")
file_case("size-too-large", st.frame({"a": entry("U8", (3,))}, FOUR), "TensorInvalidInfo")
file_case("empty-shape-with-bytes", st.frame({"a": entry("U8", (0, 4))}, FOUR), "TensorInvalidInfo")
file_case("f4-half-byte", st.frame({"a": entry("F4", (1, 3), (0, 2))}, FOUR[:2]), "MisalignedSlice")
file_case("f6-not-whole-bytes", st.frame({"a": entry("F6_E2M3", (3,), (0, 3))}, FOUR[:3]), "MisalignedSlice")
file_case("f4-wrong-size", st.frame({"a": entry("F4", (2, 2))}, FOUR), "TensorInvalidInfo")

# __metadata__.
for _name, _meta in {"number": {"n": 1}, "nested": {"n": {"m": "x"}}, "null-value": {"n": None}, "array": ["pt"],
                     "string": "pt"}.items():
    file_case(f"metadata-{_name}", st.frame({"__metadata__": _meta, "a": entry()}, FOUR), JSON)
file_case("metadata-twice", st.frame(text(("__metadata__", {"format": "pt"}), ("__metadata__", {"format": "pt"}),
                                          ("a", entry())), FOUR), JSON)
file_case("metadata-is-a-tensor", st.frame({"__metadata__": entry()}, FOUR), JSON)

# Names given twice: the library keeps the last; we refuse both forms.
file_case("name-twice-one-range", st.frame(text(("a", entry()), ("a", entry())), FOUR), "accepts", ok=False)
file_case("name-twice-two-ranges", st.frame(text(("a", entry()), ("a", entry(offsets=(4, 8)))), bytes(8)),
          "InvalidOffset")

# Unusual and right.
file_case("ok-whitespace-around", st.frame(' \t\r\n{"a":' + json.dumps(entry()) + "}\n\t ", FOUR, pad=1), "accepts")
file_case("ok-no-padding", st.frame({"a": entry("F32", (1,))}, FOUR, pad=1), "accepts")
file_case("ok-empty-tensor", st.frame({"a": entry(), "b": entry("I32", (2, 0), (4, 4))}, FOUR), "accepts")
file_case("ok-f4", st.frame({"a": entry("F4", (2, 4))}, FOUR), "accepts")
file_case("ok-scalar", st.frame({"a": entry("F32", ())}, FOUR), "accepts")
file_case("ok-metadata-empty", st.frame({"__metadata__": {}, "a": entry()}, FOUR), "accepts")
file_case("ok-no-metadata", st.frame({"a": entry()}, FOUR), "accepts")
file_case("ok-escaped-name", st.frame('{"\\u0061\\n\\"\\ud83d\\ude00":' + json.dumps(entry()) + "}", FOUR), "accepts")
file_case("ok-offsets-out-of-order", st.frame({"b": entry(offsets=(4, 8)), "a": entry()}, bytes(8)), "accepts")

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shards(d, weight_map=None, index=None, second=True):
    """Two shards holding `a` and `b`, and an index."""
    st.write(d / SHARDS[0], [st.Tensor("a", "U8", (4,), FOUR)])
    if second:
        st.write(d / SHARDS[1], [st.Tensor("b", "U8", (4,), FOUR[::-1])])
    weight_map = {"a": SHARDS[0], "b": SHARDS[1]} if weight_map is None else weight_map
    index = {"metadata": {"total_size": 8}, "weight_map": weight_map} if index is None else index
    (d / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))


case("index-shard-missing", mentions=SHARDS[1])(lambda d: shards(d, second=False))
case("index-not-json", mentions=INDEX)(lambda d: shards(d, index="{weight_map"))
case("index-is-array", mentions=INDEX)(lambda d: shards(d, index=[]))
case("index-without-weight-map", mentions=INDEX)(lambda d: shards(d, index={"metadata": {}}))
case("index-weight-map-array", mentions=INDEX)(lambda d: shards(d, weight_map=["a"]))
case("index-file-is-number", mentions=INDEX)(lambda d: shards(d, weight_map={"a": 1}))
case("index-tensor-not-in-its-shard", mentions=INDEX)(lambda d: shards(d, {"a": SHARDS[0], "b": SHARDS[0]}))
case("index-tensor-nowhere", mentions=INDEX)(lambda d: shards(d, {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]}))
case("index-absolute-path", mentions=INDEX)(lambda d: shards(d, {"a": "/etc/passwd", "b": SHARDS[1]}))
case("index-climbs-out", mentions=INDEX)(lambda d: shards(d, {"a": "../ok-scalar/model.safetensors", "b": SHARDS[1]}))
case("index-empty", mentions=INDEX)(lambda d: shards(d, index=""))
case("ok-index-wrong-total-size", ok=True)(lambda d: shards(
    d, index={"metadata": {"total_size": 5}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))


@case("shard-truncated", mentions=SHARDS[1])
def _(d):
    shards(d)
    whole = (d / SHARDS[1]).read_bytes()
    (d / SHARDS[1]).write_bytes(whole[:-1])


@case("shard-is-directory", mentions=SHARDS[1])
def _(d):
    shards(d, second=False)
    (d / SHARDS[1]).mkdir()


@case("shard-is-fifo", mentions=SHARDS[1])
def _(d):
    shards(d, second=False)
    os.mkfifo(d / SHARDS[1])


@case("shard-dangling-link", mentions=SHARDS[1])
def _(d):
    shards(d, second=False)
    (d / SHARDS[1]).symlink_to("blobs/not-downloaded")


@case("shard-link-to-itself", mentions=SHARDS[1])
def _(d):
    shards(d, second=False)
    (d / SHARDS[1]).symlink_to(SHARDS[1])


@case("shard-unreadable", reason="denied", mentions=SHARDS[1], needs="non-root")
def _(d):
    shards(d)
    (d / SHARDS[1]).chmod(0)


@case("name-in-two-files-no-index", mentions="model-b.safetensors")
def _(d):
    for name in ("model-a.safetensors", "model-b.safetensors"):
        st.write(d / name, [st.Tensor("a", "U8", (4,), FOUR)])


@case("directory-without-weights", reason="invalid", mentions="directory-without-weights")
def _(d):
    (d / "README.md").write_text("no weights here\n")


def nothing(d):
    """The case is the argument, not a directory."""
    (d / "config.json").unlink()
    d.rmdir()


@case("directory-empty", reason="invalid", mentions="directory-empty")
def _(d):
    (d / "config.json").unlink()


case("path-missing", reason="invalid", mentions="no-such-directory", model="no-such-directory")(nothing)
case("hub-id", reason="invalid", mentions="acme/MiMo-7B", model="acme/MiMo-7B")(nothing)


def gguf_bytes():
    with tempfile.NamedTemporaryFile(suffix=".gguf") as whole:
        gguf_writer.write(whole.name, [gguf_writer.Tensor("a.weight", "F32", (8,), bytes(range(32))),
                                       gguf_writer.Tensor("b.weight", "Q8_0", (32,), bytes(range(34)))],
                          {"general.architecture": "llama"})
        return whole.read()


def gguf_case(name, change, reason="corrupt"):
    """A single GGUF file, broken by `change`: bytes in, bytes out."""

    @case(name, reason=reason, mentions="model.gguf", model=f"{name}/model.gguf")
    def _(d):
        (d / "config.json").unlink()
        (d / "model.gguf").write_bytes(change(gguf_bytes()))


def patch(at, new):
    return lambda data: data[:at] + new + data[at + len(new):]


gguf_case("gguf-zero-length", lambda data: b"")
gguf_case("gguf-magic", patch(0, b"GGML"))
gguf_case("gguf-version", patch(4, struct.pack("<I", 99)), "unsupported")
gguf_case("gguf-big-endian", patch(4, struct.pack(">I", 3)), "unsupported")
gguf_case("gguf-header-cut-off", lambda data: data[:40])
gguf_case("gguf-data-cut-off", lambda data: data[:-40])
gguf_case("gguf-tensor-count-huge", patch(8, struct.pack("<Q", 2**63)))
gguf_case("gguf-key-count-huge", patch(16, struct.pack("<Q", 2**63)))
gguf_case("gguf-key-length-huge", patch(24, struct.pack("<Q", 2**64 - 1)))
gguf_case("gguf-offset-beyond-end", lambda data: patch(data.index(b"b.weight") + 8 + 4 + 8 + 4, struct.pack("<Q", 1 << 40))(data))
gguf_case("gguf-offset-misaligned", lambda data: patch(data.index(b"b.weight") + 8 + 4 + 8 + 4, struct.pack("<Q", 33))(data))
gguf_case("gguf-type-unknown", lambda data: patch(data.index(b"b.weight") + 8 + 4 + 8, struct.pack("<I", 999))(data), "unsupported")
gguf_case("gguf-dimensions-overflow", lambda data: patch(data.index(b"a.weight") + 8 + 4, struct.pack("<Q", 2**63))(data))
gguf_case("gguf-name-twice", lambda data: data.replace(b"b.weight", b"a.weight"))
gguf_case("gguf-dimension-count-huge", lambda data: patch(data.index(b"a.weight") + 8, struct.pack("<I", 2**31))(data))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=pathlib.Path, help="an empty directory, made when missing")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, (_, make) in CASES.items():
        (out / name).mkdir()
        (out / name / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}\n')
        make(out / name)
    (out / "cases.json").write_text(json.dumps({name: entry for name, (entry, _) in CASES.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
