#!/usr/bin/env python3
"""vLLM: the same tokens, and the same checksum of each parameter, from the mount as from disk, in each of vLLM's ways to
read the files: mapped, read whole, and read ahead in blocks by several threads."""

from compare import arguments, check, equal
import vllm_engine


def main():
    args = arguments(__doc__)
    disk = vllm_engine.run(args.disk)
    check(len(set(disk["tokens"][0])) > 3, f"the model itself is wrong: {disk['tokens']}")
    check(disk["weights"][0], "vLLM gave no checksums")
    for strategy in ("lazy", "eager", "prefetch"):
        mounted = vllm_engine.run(args.mounted, safetensors_load_strategy=strategy)
        equal(disk["weights"], mounted["weights"], f"{strategy}: checksums of the parameters")
        equal(disk["tokens"], mounted["tokens"], f"{strategy}: tokens")
    print(f"vllm: {len(disk['weights'][0])} parameters and {sum(map(len, disk['tokens']))} tokens are the same")


if __name__ == "__main__":
    main()
