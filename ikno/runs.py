"""Run: a directory with all that training leaves and everything after it needs.

run.json            config, card and signature, with a checksum
last.safetensors    weights, their average (train.ema), optimizer and progress: training goes on from here
best.safetensors    weights of the best validation error, those of the average if there is one
log.jsonl           one record per epoch, and events; nothing in it depends on the clock
train.log           the same for people, with times
calibration*.json   what turns predictions into intervals, for the weights that it names
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from ikno import __version__
from ikno.atomic import locked_file, whole_file
from ikno.config import MOVABLE, CompleteConfig, flattened, parse
from ikno.data.catalog import Card
from ikno.device import find_device
from ikno.errors import UserError
from ikno.models import complete_model
from ikno.surrogate import Calibration, Ensemble, Signature, Surrogate

FORMAT = 1


class BusyError(UserError):
    """Another process holds the run, or has made one in the folder."""


@dataclass(frozen=True)
class Run:
    """A run and its folder; ``create`` or ``open`` one."""

    path: Path
    config: CompleteConfig
    card: Card
    signature: Signature

    @classmethod
    def create(cls, path: Path, config: CompleteConfig, card: Card, signature: Signature) -> "Run":
        """Return a new run, written to its folder.

        Raises:
            BusyError: The folder contains a run.
            UserError: The folder cannot be written.
        """
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be used as a folder ({error.strerror}); choose another with --out"
            ) from None
        content = {
            "format": FORMAT,
            "version": __version__,
            "config": config.model_dump(mode="json"),
            "card": card.model_dump(mode="json"),
            "signature": signature.model_dump(mode="json"),
        }
        _write_signed(path / "run.json", "run", content)
        return cls(path, config, card, signature)

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Return the run in a folder.

        Raises:
            UserError: There is none, or its description is damaged.
        """
        path = Path(path)
        file = path / "run.json"
        if not file.is_file():
            raise UserError(f"{path}: no run here (run.json is missing); `ikno runs` lists the runs of a folder")
        stored = _read_signed(file, "run", "not the description of a run", "put it back or train again")
        try:
            number, parts = stored["format"], [dict(stored[name]) for name in ("config", "card", "signature")]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file}: not the description of a run: {type(error).__name__} {error}") from None
        if number != FORMAT:
            raise UserError(f"{file}: format {number} is unknown, this version of ikno reads {FORMAT}")
        config, card, signature = parts
        return cls(
            path,
            parse(CompleteConfig, config, f"{file}: config"),
            parse(Card, card, f"{file}: card"),
            parse(Signature, signature, f"{file}: signature"),
        )

    def check_same(self, config: CompleteConfig, card: Card) -> None:
        """Raise unless config and card agree with those of the run in everything that decides the result.

        Settings that the run does not know, since they came later, had their defaults in it.
        """
        old, new = (
            flattened({**c.model_dump(mode="json"), "model": complete_model(c.model)}) for c in (self.config, config)
        )
        changed = [k for k in {**old, **new} if k not in MOVABLE and old.get(k) != new.get(k)]
        if self.card.model_copy(update={"file": None}) != card.model_copy(update={"file": None}):
            changed.append("card")
            old["card"], new["card"] = self.card.name, f"{card.name} or other entries"
        if changed:
            differences = "; ".join(f"{k} was {old.get(k)}, now {new.get(k)}" for k in changed)
            raise UserError(
                f"{self.path}: cannot go on with another config ({differences}); start a new run with --out"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; the lock is released however the process ends.

        Raises:
            BusyError: Another process holds it.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked_file(self.path / "lock", wait=False))
            except BlockingIOError:
                raise BusyError(
                    f"{self.path}: another process is training here; choose another folder (--out)"
                ) from None
            except OSError as error:
                raise UserError(
                    f"{self.path}: cannot be written ({error.strerror}); choose another folder (--out)"
                ) from None
            yield

    def surrogate(self, checkpoint: str = "best", device: str | None = None) -> Surrogate:
        """Return the trained surrogate, ready to predict, with the average of the weights where training kept one.

        Args:
            checkpoint: The checkpoint, best or last.
            device: As in a config, cpu by default.
        """
        if checkpoint not in ("best", "last"):
            raise UserError(f"{checkpoint!r} is no checkpoint; use best or last")
        file = self.path / f"{checkpoint}.safetensors"
        with torch.device("meta"):  # shapes without memory
            expected = Surrogate(self.signature).state_dict()
        tensors, _ = load(file, {f"weights.{k}": v for k, v in expected.items()})
        kinds = ("weights.", "average.")  # the latter wins
        weights = {k.removeprefix(kind): v for kind in kinds for k, v in tensors.items() if k.startswith(kind)}
        for name in weights.keys() - expected.keys():
            raise UserError(f"{file}: {name} is not part of the model; the checkpoint is of another one")
        for name, tensor in weights.items():
            if (tensor.shape, tensor.dtype) != (expected[name].shape, expected[name].dtype):
                raise UserError(f"{file}: the average of {name} has another shape or type; train again")
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise UserError(
                    f"{file}: {name} holds NaN or infinite numbers; train again or use the other checkpoint"
                )
        surrogate = Surrogate(self.signature)
        surrogate.load_state_dict(weights)
        # Its weights are final: gradients are those of the inputs.
        return surrogate.to(find_device(device or "cpu")).eval().requires_grad_(False)

    def digest(self, checkpoint: str) -> str | None:
        """Return the checksum of a checkpoint, None if there is none."""
        file = self.path / f"{checkpoint}.safetensors"
        return _digest(file.read_bytes()) if file.is_file() else None

    def log(self) -> list[dict[str, Any]]:
        """Return the records of the log without an incomplete last line."""
        file = self.path / "log.jsonl"
        try:
            lines = file.read_text().splitlines(keepends=True) if file.exists() else []
            return [json.loads(line) for line in lines if line.endswith("\n")]
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{file}: damaged ({error}); remove it, the run then has no curves") from None


def check_free(path: Path) -> None:
    """Raise if a folder contains a run."""
    if (path / "run.json").exists():
        raise BusyError(f"{path}: holds a run already; go on with it (--resume) or choose another folder (--out)")


def save(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON state to one file with a checksum; the old file stays until the new one is complete."""
    # Contiguous copies: safetensors refuses tensors that share memory.
    own = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
    text = json.dumps(state)
    metadata = {"format": str(FORMAT), "state": text, "sha256": _content_digest(own, text)}
    write_atomic(path, to_bytes(own, metadata))


def load(path: Path, expected: Mapping[str, Tensor] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the state that ``save`` wrote, after checks.

    Args:
        path: The file.
        expected: Tensors whose names and shapes must be in the file; they are compared before anything is read.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint; the run may not have got that far")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != str(FORMAT):
                raise UserError(f"{path}: format {metadata.get('format')!r} is unknown, this version reads {FORMAT}")
            names = list(file.keys())
            stored = {n: next((f for f in former_names(n) if f in names), n) for n in expected or {}}
            for name, tensor in (expected or {}).items():
                if stored[name] not in names:
                    raise UserError(f"{path}: {name} is missing; the checkpoint is of another model")
                shape = list(file.get_slice(stored[name]).get_shape())
                if shape != list(tensor.shape):
                    raise UserError(f"{path}: {name} has shape {shape}, the config says {list(tensor.shape)}")
            tensors = {name: file.get_tensor(name) for name in names}
        if metadata.get("sha256") != _content_digest(tensors, metadata.get("state", "")):
            raise UserError(f"{path}: the checksum does not agree; the file is damaged, use the other checkpoint")
        for name, tensor in (expected or {}).items():
            tensors[name] = tensors.pop(stored[name])
            if tensors[name].dtype != tensor.dtype:
                raise UserError(f"{path}: {name} has the type {tensors[name].dtype}, expected {tensor.dtype}")
        return tensors, dict(json.loads(metadata["state"]))
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # also RecursionError
        raise UserError(f"{path}: not a readable checkpoint, or cut short: {error}") from None


def former_names(name: str) -> tuple[str, ...]:
    """Return a name of weights and its former names: `free` for a profile or a matrix, and those of the time when every
    processor was a transformer."""
    free = re.sub(r"\.(profile|matrix)$", ".free", name)
    transformer = name
    for now, then in ((".processor.", ".transformer."), (".mix_norm.", ".attention_norm."), (".mixer.", ".")):
        transformer = transformer.replace(now, then)
    return name, free, transformer


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the new content is there, complete."""
    try:
        with whole_file(path, durable=True) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); make room, what was there is intact") from None


@overload
def load_surrogate(path: Path | str, checkpoint: str = "best", device: str | None = None) -> Surrogate: ...


@overload
def load_surrogate(path: Iterable[Path | str], checkpoint: str = "best", device: str | None = None) -> Ensemble: ...


def load_surrogate(
    path: Path | str | Iterable[Path | str], checkpoint: str = "best", device: str | None = None
) -> Surrogate | Ensemble:
    """Return the trained surrogate of a run, or of several runs as an ensemble, with its calibration if there is one.

    ``ikno.load(run).predict(points, inputs)``, ``ikno.load([run, another]).predict(points, inputs)``.

    Args:
        path: The folder of a run, or of several.
        checkpoint: The checkpoint, best or last.
        device: cpu (the default), cuda, cuda:1 or auto.
    """
    single = isinstance(path, Path | str)
    loaded = surrogate_of([Run.open(p) for p in ([path] if single else path)], checkpoint, device)
    return loaded if single or isinstance(loaded, Ensemble) else Ensemble([loaded], loaded.calibration)


def surrogate_of(runs: Sequence[Run], checkpoint: str = "best", device: str | None = None) -> Any:
    """Return the surrogate of one run or the ensemble of several, with its calibration if there is one."""
    check_distinct(runs)
    members = [run.surrogate(checkpoint, device) for run in runs]
    joint = members[0] if len(members) == 1 else Ensemble(members)
    joint.calibration = load_calibration(runs, checkpoint)
    return joint


def check_distinct(runs: Sequence[Run]) -> None:
    """Raise if no run is given, or one of them twice: an ensemble of copies would underestimate its spread."""
    if not runs:
        raise UserError("no run is named; an ensemble needs at least one")
    places = [run.path.resolve() for run in runs]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise UserError(f"{runs[i].path}: named twice; name each run of an ensemble once")


def calibration_file(runs: Sequence[Run], checkpoint: str = "best") -> str:
    """Return the name of the file with the calibration of a run, or of an ensemble in each member."""
    weights = "" if checkpoint == "best" else f"-{checkpoint}"
    return f"calibration{weights}{'' if len(runs) == 1 else f'-of-{len(runs)}'}.json"


def weights_of(runs: Sequence[Run], checkpoint: str = "best") -> tuple[str, ...]:
    """Return the checksums of the members' weights, in an order that does not depend on that of the runs."""
    return tuple(sorted(digest for run in runs if (digest := run.digest(checkpoint)) is not None))


def save_calibration(runs: Sequence[Run], calibration: Calibration, checkpoint: str = "best") -> None:
    """Write the calibration to the folder of every member."""
    for run in runs:
        _write_signed(run.path / calibration_file(runs, checkpoint), "calibration", calibration.model_dump(mode="json"))


def load_calibration(runs: Sequence[Run], checkpoint: str = "best") -> Calibration | None:
    """Return what ``save_calibration`` wrote for these weights, None if there is nothing or they have changed since."""
    for run in runs:
        file = run.path / calibration_file(runs, checkpoint)
        if file.is_file():
            stored = _read_signed(file, "calibration", "not a calibration", "calibrate again, or remove the file")
            calibration = parse(Calibration, stored, str(file))
            if calibration.members == weights_of(runs, checkpoint):
                return calibration
    return None


def find_runs(folder: Path) -> list[Path]:
    """Return the directories below a folder that hold a run."""
    return sorted(file.parent for file in folder.rglob("run.json")) if folder.is_dir() else []


def _write_signed(file: Path, name: str, content: dict[str, Any]) -> None:
    """Write JSON under a name, with a checksum."""
    signed = {"sha256": _digest(json.dumps(content, indent=1).encode()), name: content}
    write_atomic(file, json.dumps(signed, indent=1).encode())


def _read_signed(file: Path, name: str, wrong: str, remedy: str) -> Any:
    """Return what ``_write_signed`` wrote; else an error says what is wrong, and the remedy."""
    try:
        signed = json.loads(file.read_bytes())
        content = signed[name]
        intact = signed["sha256"] == _digest(json.dumps(content, indent=1).encode())
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file}: {wrong} ({type(error).__name__} {error}); {remedy}") from None
    if not intact:
        raise UserError(f"{file}: the checksum does not agree, the file was changed or damaged; {remedy}")
    return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content_digest(tensors: Mapping[str, Tensor], state: str) -> str:
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
