"""One vLLM engine on the CPU: what it generates and what it loaded. Several in one process, one after the other."""

import gc
import hashlib
import json
import os

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_DO_NOT_TRACK="1",
                  VLLM_ALLOW_INSECURE_SERIALIZATION="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# Everything in this process: an engine is up in seconds. (Ranks of a group are processes all the same.)
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm.model_executor.models.registry as registry  # noqa: E402

registry._run_in_subprocess = lambda inspect: inspect()  # saves some ten seconds for each architecture

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: E402

PROMPTS = ["hello world", "wcache"]
NEW_TOKENS = 24


def _draft_digests(worker):
    from vllm.model_executor.model_loader.weight_checksum import compute_tensor_digests
    model = getattr(getattr(worker.model_runner, "drafter", None), "model", None)
    return None if model is None else compute_tensor_digests(model)


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def run(model, speculative=None, tp=1, strategy=None):
    """Loads `model` and generates; returns {"tokens", "weights", "draft_weights", "drafted", "accepted"}. The weights
    are {parameter: digest} for each rank. `strategy` is vLLM's way to read safetensors: lazy where it is absent."""
    more = {"speculative_config": speculative} if speculative else {}
    if tp > 1:  # a rank to a CPU; vLLM asks for the list where it starts ranks as processes
        cpus = sorted(os.sched_getaffinity(0))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cpus[rank % len(cpus)]) for rank in range(tp))
    if strategy:
        more["safetensors_load_strategy"] = strategy
    llm = LLM(model=str(model), dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4,
              max_num_batched_tokens=256, distributed_executor_backend="uni" if tp == 1 else "mp",
              tensor_parallel_size=tp, disable_log_stats=False, enable_prefix_caching=False, use_tqdm_on_load=False,
              **more)
    try:
        sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
        outputs = llm.generate(PROMPTS, sampling, use_tqdm=False)
        metrics = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
        return {
            "tokens": [list(o.outputs[0].token_ids) for o in outputs],
            "weights": llm.collective_rpc("compute_weight_checksums"),
            "draft_weights": llm.collective_rpc(_draft_digests),
            "drafted": metrics.get("vllm:spec_decode_num_draft_tokens"),
            "accepted": metrics.get("vllm:spec_decode_num_accepted_tokens"),
        }
    finally:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
