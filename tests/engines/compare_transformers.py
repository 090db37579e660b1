#!/usr/bin/env python3
"""transformers: a sentence's embedding from all-MiniLM-L6-v2 is the same, to the bit, from the mount as from disk."""

import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import torch  # noqa: E402
from transformers import AutoModel, AutoTokenizer  # noqa: E402

from compare import arguments, check, check_mapped, equal  # noqa: E402

SENTENCES = ["The weights are where they always were.", "A cache that is a file system."]


def embed(path):
    torch.set_num_threads(1)
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path)
    model.eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return model, torch.nn.functional.normalize(mean, dim=1)


def main():
    args = arguments(__doc__)
    _, disk = embed(args.disk)
    model, mounted = embed(args.mounted)
    check_mapped(args.mounted)
    del model
    check(torch.isfinite(disk).all() and disk.shape == (2, 384), f"the model itself is wrong: {disk.shape}")
    check(abs(float(disk[0] @ disk[1])) < 0.9, "two different sentences have one embedding")
    equal(disk.numpy().tobytes(), mounted.numpy().tobytes(), "embedding")
    print("transformers: the embeddings are the same")


if __name__ == "__main__":
    main()
