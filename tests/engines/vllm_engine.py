"""One vLLM engine on the CPU: what it loaded and what it generates. Several in one process, one after the other."""

import gc
import os
import pathlib

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_DO_NOT_TRACK="1",
                  PYTHONPATH=str(pathlib.Path(__file__).resolve().parent))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# Everything in this process: an engine is up in seconds. (Several ranks are processes all the same.)
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm.model_executor.models.registry as registry  # noqa: E402

registry._run_in_subprocess = lambda inspect: inspect()  # saves some ten seconds for each architecture

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: E402

PROMPTS = ["hello world", "wcache"]
NEW_TOKENS = 24


def run(model, tp=1, **options):
    """Loads `model` on `tp` ranks and generates; the options are vLLM's own.

    Returns {"tokens", "weights", "draft_weights", "drafted", "accepted"}. The weights are {parameter: digest} for each
    rank, as loaded; the draft's are None for each rank without a draft."""
    if tp > 1:  # a CPU to each rank
        cpus = sorted(os.sched_getaffinity(0))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cpus[rank % len(cpus)]) for rank in range(tp))
    llm = LLM(model=str(model), dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4,
              max_num_batched_tokens=256, distributed_executor_backend="uni" if tp == 1 else "mp",
              tensor_parallel_size=tp, disable_log_stats=False, enable_prefix_caching=False, use_tqdm_on_load=False,
              worker_extension_cls="vllm_worker.Extension", **options)
    try:
        loaded = llm.collective_rpc("take_loaded")
        sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
        outputs = llm.generate(PROMPTS, sampling, use_tqdm=False)
        metrics = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
        return {
            "tokens": [list(o.outputs[0].token_ids) for o in outputs],
            "weights": [models[0] for models in loaded],
            "draft_weights": [models[1] if len(models) > 1 else None for models in loaded],
            "drafted": metrics.get("vllm:spec_decode_num_draft_tokens"),
            "accepted": metrics.get("vllm:spec_decode_num_accepted_tokens"),
        }
    finally:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
