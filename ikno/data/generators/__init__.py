"""One partial differential equation per file; ``GENERATORS`` names what can be made and loads it when asked for."""

from collections.abc import Callable
from importlib import import_module

from ikno.data.records import Generator
from ikno.registry import Registry


def _named(module: str, name: str) -> Callable[[], type[Generator]]:
    return lambda: getattr(import_module(f"ikno.data.generators.{module}"), name)


_OWN: dict[str, Callable[[], type[Generator]]] = {
    "poisson-gauss": _named("poisson_square", "PoissonGauss"),
    "poisson-c-sines": _named("disc", "PoissonCSines"),
    "elasticity": _named("elasticity", "Elasticity"),
    "naca0012": _named("airfoil", "NACA0012"),
    "naca2412": _named("airfoil", "NACA2412"),
    "rae2822": _named("airfoil", "RAE2822"),
    "nasa-crm": _named("aircraft", "Aircraft"),
    "ns-gauss": _named("navier_stokes", "NSGauss"),
    "ns-pwc": _named("navier_stokes", "NSPwC"),
    "ns-sl": _named("navier_stokes", "NSSL"),
    "ns-svs": _named("navier_stokes", "NSSVS"),
    "ce-gauss": _named("euler", "CEGauss"),
    "ce-rp": _named("euler", "CERP"),
    "wave-layer": _named("wave_layer", "WaveLayer"),
    "wave-c-sines": _named("disc", "WaveCSines"),
}
# Functions () -> the class of a generator; that of a benchmark has its name.
GENERATORS: Registry[Callable[[], type[Generator]]] = Registry("generator", "data", _OWN)
