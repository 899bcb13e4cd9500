"""vLLM by itself on a tiny random model: exits with 0 where it starts and generates on this machine.

``.ci/run`` runs it before the suite of vLLM: a machine on which vLLM cannot run (memory, processor features) is another
matter than a suite that fails.
"""

import os
import tempfile

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

SHAPE = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
        engine = LLM(folder, skip_tokenizer_init=True, dtype="float32", max_model_len=32, enforce_eager=True)
        sampling = SamplingParams(max_tokens=4, detokenize=False)
        (reply,) = engine.generate({"prompt_token_ids": [1, 2, 3]}, sampling, use_tqdm=False)
        assert len(reply.outputs[0].token_ids) > 0


if __name__ == "__main__":
    main()
