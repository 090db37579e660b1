#!/usr/bin/env python3
"""vLLM on --tp ranks, each of which loads its own files of a sharded checkpoint: from the mount as from disk."""

from compare import arguments, check, equal
import vllm_engine


def main():
    args = arguments(__doc__, "--tp")
    tp = int(args.tp)
    disk = vllm_engine.run(args.disk, tp, load_format="sharded_state")
    mounted = vllm_engine.run(args.mounted, tp, load_format="sharded_state")
    check(len(disk["weights"]) == tp and disk["weights"][0] != disk["weights"][1], "the ranks loaded the same")
    equal(disk["weights"], mounted["weights"], "checksums of the ranks' parameters")
    equal(disk["tokens"], mounted["tokens"], "tokens")
    print(f"vllm: {tp} ranks with {len(disk['weights'][0])} parameters each, and the tokens, are the same")


if __name__ == "__main__":
    main()
