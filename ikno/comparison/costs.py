"""What a training step of each model costs: time, measured in turns with the others, and peak memory."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ikno.comparison.cells import alone, digest_of
from ikno.config import Config
from ikno.cost import Seconds, Step, interleaved, peak_memory
from ikno.data.problem import Problem
from ikno.device import find_device
from ikno.errors import UserError
from ikno.runs import write_atomic
from ikno.training import prepare_step

REPEATS = 5
# What does not change the cost of a step.
FREE = ("train.learning_rate", "train.epochs", "train.steps", "seed")


@dataclass(frozen=True)
class Cost:
    """Parameters of the model; one step of training: seconds on the clock and of the processor, peak memory in MB.

    The memory is None where it cannot be measured.
    """

    parameters: int
    seconds: float
    cpu_seconds: float
    memory: float | None

    @classmethod
    def of(cls, parameters: int, time: Seconds, memory: float) -> "Cost":
        """Return the cost of a step that was measured; a memory that is not a number is unknown."""
        return cls(parameters, time.wall, time.cpu, None if math.isnan(memory) else memory)

    def counted(self, device: str, threads: int) -> float:
        """Return the seconds of a step that count in a budget.

        On a processor those of all threads together, shared among them: what else the machine does hardly changes them.
        """
        return self.cpu_seconds / threads if find_device(device).type == "cpu" else self.seconds


def measure_costs(
    configs: Mapping[str, Config],
    problem: Problem,
    file: Path,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Cost], dict[str, str]]:
    """Return the cost of each complete config on the first batch of the problem, and why others cannot be trained.

    All are timed in turns in this process, by one process at a time.

    Args:
        configs: Complete configs by a name.
        problem: The data they are for.
        file: Where results are kept, for this number of threads and device.
        say: Receives a line if something is measured.
    """
    threads, data = torch.get_num_threads(), problem.digest()
    keys = {k: f"{digest_of(c, data, FREE)[:16]} {c.device} {threads} threads" for k, c in configs.items()}
    steps: dict[str, Step] = {}
    refused: dict[str, str] = {}
    with alone(file.with_suffix(".lock")):
        try:
            kept = {k: Cost(**c) for k, c in json.loads(file.read_bytes()).items()} if file.exists() else {}
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: damaged ({error}); remove it, costs are then measured again") from None
        for k, config in configs.items():
            try:
                if keys[k] not in kept:
                    steps[k] = prepare_step(config, problem)
            except UserError as error:  # two dimensions only, or nothing for Muon
                refused[k] = str(error)
        if steps:
            say(f"measuring the cost of {len(steps)} models")
            times = interleaved(steps, REPEATS)
            sizes = {k: step.parameters for k, step in steps.items()}
            steps.clear()  # the memory is free while that of others is measured
            for k, size in sizes.items():
                kept[keys[k]] = Cost.of(size, times[k], peak_memory(prepare_step, configs[k]))
            write_atomic(file, json.dumps({k: asdict(c) for k, c in kept.items()}, indent=1).encode())
    return {k: kept[key] for k, key in keys.items() if k not in refused}, refused
