#!/usr/bin/env python3
"""vLLM with MTP: target and draft from two directories of the mount, against both from the checkpoint on disk.

The tokens are the same with any draft, so the draft is shown to be right by its parameters' checksums and by the number
of its tokens that the target accepts: all with the right weights, none with --other-draft's."""

import json

from compare import arguments, check, equal
import vllm_engine


def main():
    args = arguments(__doc__, "--speculative-config", "--other-draft", "--tp")
    tp = int(args.tp or 1)
    speculative = json.loads(args.speculative_config)
    own = {k: v for k, v in speculative.items() if k != "model"}
    check(speculative.get("model"), "the speculative config names no draft")

    disk = vllm_engine.run(args.disk, tp, speculative_config=own)
    check(disk["drafted"] and disk["accepted"] == disk["drafted"],
          f"the model itself is wrong: {disk['accepted']} of {disk['drafted']} draft tokens accepted")
    mounted = vllm_engine.run(args.mounted, tp, speculative_config=speculative)
    equal(disk["weights"], mounted["weights"], "checksums of the target's parameters")
    check(mounted["draft_weights"][0], "no draft was loaded")
    equal(disk["draft_weights"], mounted["draft_weights"], "checksums of the draft's parameters")
    equal(disk["tokens"], mounted["tokens"], "tokens")
    equal(disk["accepted"], mounted["accepted"], "accepted draft tokens")
    equal(disk["drafted"], mounted["drafted"], "draft tokens")
    if args.other_draft:
        other = vllm_engine.run(args.mounted, tp, speculative_config={**speculative, "model": args.other_draft})
        equal(disk["tokens"], other["tokens"], "tokens with another draft")
        check(other["draft_weights"] != disk["draft_weights"], "another draft's parameters are the same")
        equal(0, other["accepted"], "accepted tokens of another draft")
    print(f"vllm: target and draft are the same on {tp} rank(s): {len(disk['weights'][0])} and "
          f"{len(disk['draft_weights'][0])} parameters, {int(mounted['accepted'])} of {int(mounted['drafted'])} draft "
          "tokens accepted")


if __name__ == "__main__":
    main()
