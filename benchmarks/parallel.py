"""Training step on one cloud that several processes hold together: peak memory and CPU seconds of each process.

IKNO-TP with width 64, two layers, 12^3 latent grid and three branches on an aircraft-like surface, one sample, AdamW.
Every process has its part of the points, made before the measurement begins; the peak is what a step needs above that,
the largest of the processes. The transformer on the latent grid is the same in all, so its share does not fall.
"""

import os
import socket
import time
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.aircraft import surface
from ikno.cost import resident
from ikno.memory import reused_memory
from ikno.models import IKNO, build
from ikno.training.distributed import group
from ikno.training.losses import sample_losses

SETTINGS = {"d_model": 64, "num_heads": 4, "num_layers": 2, "grid_size": 12}


def steps(rank: int, size: int, port: int, points: int, repeats: int, threads: int, sender) -> None:
    """Send loss, norm of the gradient, peak MB above the inputs and CPU seconds of a step in one of the processes."""
    torch.set_num_threads(threads)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with group("cpu", size) as processes, reused_memory():
        rows = slice(points * rank // size, points * (rank + 1) // size)
        x, normals = (t[:, rows].clone() for t in surface(points))
        target = torch.sin(3 * x) + normals
        model = build("ikno-tp", in_channels=3, out_channels=3, dim=3, seed=0, **SETTINGS)
        assert isinstance(model, IKNO)
        processes.divide_points(model, "ikno-tp")
        wrapped = processes.wrap(model)
        optimizer = torch.optim.AdamW(model.parameters())
        cloud = model.locate(x)
        warm = torch.ones(64, 64, requires_grad=True)
        (warm @ warm).sum().backward()  # buffers and threads that any first product and backward pass make
        Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS
        base, spent = resident("VmRSS"), 0.0
        loss, norm = torch.zeros(()), torch.zeros(())
        for turn in range(repeats + 1):
            start = time.process_time()
            optimizer.zero_grad()
            output = wrapped(normals, cloud)
            losses = sample_losses(output, target, None, "relative_l2", processes.team).mean()
            losses.backward()
            if turn == 0:  # before the weights change
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                loss, norm = losses.detach(), torch.nn.utils.get_total_norm(gradients)
            optimizer.step()
            spent += (time.process_time() - start) * (turn > 0)  # the first prepares the cloud
        sender.send((float(loss), float(norm), resident("VmHWM") - base, spent / repeats))


def main() -> None:
    parser = measure.arguments(__doc__, repeats=1, threads=1)
    parser.add_argument("--points", type=int, nargs="+", default=[50_000, 200_000], help="points of the cloud")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="processes that hold it")
    args = parser.parse_args()
    context, rows = get_context("spawn"), []
    for points in args.points:
        first: tuple[float, float, float, float] | None = None
        for size in args.processes:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            pipes = [context.Pipe(duplex=False) for _ in range(size)]
            common = (size, port, points, args.repeats, args.threads)
            started = [context.Process(target=steps, args=(r, *common, pipes[r][1])) for r in range(size)]
            for process in started:
                process.start()
            found = [receiver.recv() for receiver, _ in pipes]
            for process in started:
                process.join()
            worst = (found[0][0], found[0][1], max(f[2] for f in found), max(f[3] for f in found))
            first = first or worst
            rows.append(
                {
                    "points": f"{points:,}",
                    "processes": size,
                    "peak MB per process": worst[2],
                    "of one": worst[2] / first[2],
                    "CPU s per step and process": worst[3],
                    "of one ": worst[3] / first[3],
                    "loss": worst[0],
                    "loss off by": abs(worst[0] / first[0] - 1),
                    "|gradient| off by": abs(worst[1] / first[1] - 1),
                }
            )
    title = "Training step of one cloud over several processes; 'of one': relative to the first row of the same points"
    measure.report(title, rows, args.json, threads=args.threads)


if __name__ == "__main__":
    main()
