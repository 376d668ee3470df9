"""The rows that these packages add to the command line: verbs, and model types by name."""

from __future__ import annotations

from medley.cli.verb import Verb, verb_of


def _verb(name: str, group: str, help: str, example: str, **more: bool) -> Verb:
    """Returns the verb of the package of the same name."""
    return verb_of(f"medley_extras.{name}", name, group, help, example, **more)


VERBS = [
    _verb(
        "probe",
        "Prepare",
        "Measure the devices here and the links between them, as a cluster.yaml",
        "medley probe -o cluster.yaml",
        is_of_a_job=True,
    ),
    _verb(
        "profile",
        "Prepare",
        "Measure what the ops and collectives of a model take on the devices of a cluster",
        "medley profile g.graph cluster.yaml --global-batch 64 -o profile.json",
        is_of_a_job=True,
    ),
    _verb(
        "train",
        "Run",
        "Train a model by name on a folder of text or images",
        "medley train medley_extras.models:gpt --data books --cluster cluster.yaml --epochs 3",
        is_of_a_job=True,
    ),
    _verb(
        "convert",
        "Run",
        "Write the weights of a checkpoint as other programs read them",
        "medley convert out --to hf -o weights",
    ),
    _verb(
        "report",
        "Inspect",
        "Write a plan with its predicted times and memory as one HTML file",
        "medley report plan.json --graph g.graph --cluster cluster.yaml --compare -o report.html",
    ),
    _verb(
        "fits",
        "Plan",
        "Estimate which GPUs a model fits on (no GPU needed)",
        "medley fits hf:config.json --cards 3090 4060Ti-16GB --mode lora",
        ends_at_once=True,
    ),
    _verb(
        "doctor",
        "Prepare",
        "Check packages and devices here: what would fail, and the fix",
        "medley doctor",
    ),
    _verb(
        "demo",
        "Run",
        "Train a small GPT on four unequal, emulated devices",
        "medley demo",
    ),
]

# Other forms of a verb, by the option that comes first: `medley launch --for slurm`.
FORMS = {
    ("launch", "--for"): verb_of(
        "medley_extras.deploy",
        "launch --for",
        "Run",
        "Write the job that runs a plan under Slurm, Kubernetes, SkyPilot or Ray",
        "medley launch --for slurm plan.json -o job.sh -- train.py --epochs 3",
    ),
}

# Modules whose before(arguments, parse) is called before a verb of the core, by its name.
BEFORE = dict.fromkeys(("plan", "compare"), "medley_extras.recall.hint")

# The module whose export(trainer, host, port) serves the metrics of a run.
EXPORTER = "medley_extras.metrics"

# The module whose tuner(trainer, steps, remember) tries plans during training.
TUNER = "medley_extras.race"

# The module whose Tempo(member, settle, gain, want, name) finds devices that become slower.
TEMPO = "medley_extras.race.tempo"

# The module whose Speed(job, generation, plan, cluster, profile, expect) reports slow devices.
SPEED = "medley_extras.race.stragglers"

# The module whose load(name, options, batch) reads the models of a type, "hf:gpt2".
MODELS = {"hf": "medley_extras.models.hf"}
