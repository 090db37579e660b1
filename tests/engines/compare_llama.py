#!/usr/bin/env python3
"""llama.cpp: a GGUF mapped from the mount generates the same tokens as from disk."""

import llama_cpp

from compare import arguments, check, check_mapped, equal


def generate(path, mapped=None):
    model = llama_cpp.Llama(path, n_ctx=256, n_threads=1, n_threads_batch=1, use_mmap=True, use_mlock=False, seed=1,
                            verbose=False)
    if mapped:
        check_mapped(mapped)
    prompt = model.tokenize(b"The capital of France is")
    out = []
    for token in model.generate(prompt, temp=0.0, top_k=1):
        out.append(token)
        if len(out) == 20:
            break
    text = model.detokenize(out).decode(errors="replace")
    metadata = dict(model.metadata)
    model.close()
    return out, text, metadata


def main():
    args = arguments(__doc__)
    disk, text, metadata = generate(args.disk)
    mounted, _, mounted_metadata = generate(args.mounted, args.mounted)
    check("Paris" in text, f"the model itself is wrong: {text!r}")
    equal(metadata, mounted_metadata, "metadata")
    equal(disk, mounted, "tokens")
    print(f"llama.cpp: the same 20 tokens: {text!r}")


if __name__ == "__main__":
    main()
