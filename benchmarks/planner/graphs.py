"""Captures the graphs that benchmarks/planner times, without weights, into a folder.

python benchmarks/planner/graphs.py build/graphs
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LLAMA = "hidden_size=4096&intermediate_size=14336&num_attention_heads=32&num_key_value_heads=8"
BIG = "hidden_size=8192&intermediate_size=28672&num_attention_heads=64&num_key_value_heads=8"
GPT = "size=default&tokens=1024&vocab_size=51200&n_positions=1024&dtype=bfloat16"
GRAPHS = {
    "bert12": "hf:bert?size=default&tokens=512",
    "bert24": "hf:bert?size=default&tokens=512&num_hidden_layers=24",
    "bert48": "hf:bert?size=default&tokens=512&num_hidden_layers=48",
    "bert48s": "hf:bert?size=default&tokens=128&num_hidden_layers=48",
    "gpt12": "hf:gpt2?size=default&tokens=512",
    "gpt13b": f"hf:gpt2?{GPT}&n_embd=2048&n_head=32&n_layer=24",
    "gpt26b": f"hf:gpt2?{GPT}&n_embd=2560&n_head=32&n_layer=32",
    "llama7b": "hf:llama?size=default&tokens=2048&hidden_size=4096&intermediate_size=11008"
    "&num_attention_heads=32&num_key_value_heads=32&num_hidden_layers=32&dtype=bfloat16",
    "gpt67b": "hf:gpt2?size=default&tokens=2048&vocab_size=51200&n_positions=2048&dtype=bfloat16"
    "&n_embd=4096&n_head=32&n_layer=32",
    "llama13b": "hf:llama?size=default&tokens=2048&hidden_size=5120&intermediate_size=13824"
    "&num_attention_heads=40&num_key_value_heads=40&num_hidden_layers=40&dtype=bfloat16",
    "llama30b": "hf:llama?size=default&tokens=2048&hidden_size=6656&intermediate_size=17920"
    "&num_attention_heads=52&num_key_value_heads=52&num_hidden_layers=60&dtype=bfloat16",
    "llama12": f"hf:llama?size=default&tokens=512&{LLAMA}&num_hidden_layers=12&dtype=bfloat16",
    "t5": "hf:t5?size=default&tokens=512&d_model=1024&d_ff=16384&num_heads=32&d_kv=128"
    "&num_layers=24&num_decoder_layers=24&dtype=bfloat16",
    "moe12": "medley_extras.models:bert_moe?size=hap&positions=512",
    "mixtral12": "hf:mixtral?size=default&tokens=512&num_hidden_layers=12&num_local_experts=16"
    "&dtype=bfloat16",
    "vgg19": "medley_extras.models:vgg?size=19",
    "resnet50": "medley_extras.models:resnet?size=50",
    "llama70b": f"hf:llama?size=default&tokens=4096&{BIG}&num_hidden_layers=80&dtype=bfloat16",
}


def main() -> None:
    """Captures the missing graphs."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in GRAPHS.items():
        path = folder / f"{name}.graph"
        if path.exists():
            continue
        command = [sys.executable, "-m", "medley", "capture", model, "-o", str(path)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
