"""Part of every vLLM worker of the tests: takes note of what was loaded, before vLLM repacks it.

On the CPU vLLM packs linear weights into a form of its own after loading and leaves empty parameters behind, so that
checksums taken later (compute_weight_checksums) are those of nothing.
"""

import os

from vllm.model_executor.model_loader import base_loader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests

_process = base_loader.process_weights_after_loading
_loaded = []


def _note_and_process(model, *args, **kwargs):
    _loaded.append(compute_tensor_digests(model))
    out = os.environ.get("WCACHE_TEST_SAVE_SHARDED")
    if out:
        ShardedStateLoader.save_model(model, out, None, 400_000)
    return _process(model, *args, **kwargs)


base_loader.process_weights_after_loading = _note_and_process


class Extension:
    """Methods that the tests call in each worker."""

    def take_loaded(self):
        """{parameter: digest} of each model loaded since the last call: the target's, then the draft's."""
        taken = list(_loaded)
        _loaded.clear()
        return taken
