"""Steady compressible flow around an airfoil: finite volumes, implicit Gauss-Seidel relaxation and multigrid."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float

from ikno.data.generators import airfoil_loops as loops
from ikno.data.generators.airfoil_grid import conformal
from ikno.data.generators.airfoil_loops import GAMMA
from ikno.data.generators.airfoil_shape import Curve


def spread(around: int, layers: int, radius: float, ends: tuple[float, float] = (0.25, 0.25)):
    s = 2 * np.pi * np.arange(around) / around
    a, b = ends
    theta = s + a * np.sin(s) + b / 2 * np.sin(2 * s)
    total = np.log(4 * radius)
    first = 2 * np.pi / around
    low, high = 1.0, 2.0
    for _ in range(100):
        g = (low + high) / 2
        if first * (g**layers - 1) / (g - 1) > total:
            high = g
        else:
            low = g
    sigma = np.append(0, np.cumsum(first * g ** np.arange(layers)))
    return theta, sigma * total / sigma[-1]


class Level:
    def __init__(self, z, curvature, softness):
        """z [layers+1, around]."""
        after = np.roll(z, -1, 1)
        self.z = z
        self.shape = (z.shape[0] - 1, z.shape[1])
        nj, ni = self.shape
        edge = z[1:] - z[:-1]
        self.across = self._faces(1j * edge)
        self.along = self._faces(-1j * (after - z))
        self.volume = 0.5 * ((after[1:] - z[:-1]) * (z[1:] - after[:-1]).conj()).imag
        self.volume = abs(self.volume)
        self.center = (z[1:] + z[:-1] + after[1:] + after[:-1]) / 4
        middle = (z[0] + after[0]) / 2
        n = self.along[0, :, 0] + 1j * self.along[0, :, 1]
        self.height = 2 * ((self.center[0] - middle) * n.conj()).real
        self.curvature = curvature
        self.soft = (softness**2 * self.volume) ** 1.5
        self.rim = 1.5 * (z[-1] + after[-1]) / 2 - 0.5 * (z[-2] + after[-2]) / 2
        self.w = np.empty((nj + 2, ni, 4))
        self.r = np.empty((nj, ni, 4))
        self.d = np.empty((nj, ni, 4))
        self.rows = np.empty((5, ni, 4))
        self.facei = np.empty((nj, ni, 7))
        self.facej = np.empty((nj + 1, ni, 7))
        self.inverse = np.empty((nj, ni, 4, 4))

    @staticmethod
    def _faces(n):
        size = abs(n)
        return np.ascontiguousarray(np.stack([n.real / size, n.imag / size, size], -1))

    def residual(self, u, far, second):
        if not loops.primitive(u, self.w, far, self.height, self.curvature, self.along):
            raise FloatingPointError
        loops.residual(
            self.w, self.across, self.along, self.soft, self.height, self.curvature, second, self.rows, self.r
        )
        return self.r

    def relax(self, u, far, second, forcing, courant, floor, rounds):
        r = self.residual(u, far, second)
        if forcing is not None:
            r += forcing
        loops.prepare(self.w, self.across, self.along, courant, floor, self.facei, self.facej, self.inverse)
        loops.sweep(r, self.across, self.along, self.facei, self.facej, self.inverse, rounds, self.d)
        loops.step(u, self.d, self.w, 0.2)


def coarsened(level, softness):
    return Level(level.z[::2, ::2].copy(), level.curvature.reshape(-1, 2).mean(1), softness)


def restrict(a):
    nj, ni, k = a.shape
    return a.reshape(nj // 2, 2, ni // 2, 2, k).sum((1, 3))


def prolong(a):
    """Bilinear in index space; constant beyond wall and far field."""
    def halves(a, axis, periodic):
        if periodic:
            before, after = np.roll(a, 1, axis), np.roll(a, -1, axis)
        else:
            before = np.concatenate([a[:1], a[:-1]])
            after = np.concatenate([a[1:], a[-1:]])
        return np.stack([0.75 * a + 0.25 * before, 0.75 * a + 0.25 * after], axis + 1)
    nj, ni, k = a.shape
    a = halves(a, 0, False).reshape(2 * nj, ni, k)
    return halves(a, 1, True).reshape(2 * nj, 2 * ni, k)


def vortex(z, mach, angle, lift):
    """primitive state."""
    at = z - 0.25
    r, phi = abs(at), np.angle(at)
    beta = np.sqrt(1 - mach**2)
    swirl = lift * mach / 2 * beta / (2 * np.pi * r) / (1 - (mach * np.sin(phi - angle)) ** 2)
    u = mach * np.cos(angle) + swirl * np.sin(phi)
    v = mach * np.sin(angle) - swirl * np.cos(phi)
    heat = 1 + (GAMMA - 1) / 2 * (mach**2 - u**2 - v**2)
    return np.stack([heat ** (1 / (GAMMA - 1)), u, v, heat ** (GAMMA / (GAMMA - 1)) / GAMMA], -1)


def conserved(w):
    rho, u, v, p = np.moveaxis(w, -1, 0)
    return np.stack([rho, rho * u, rho * v, p / (GAMMA - 1) + rho * (u * u + v * v) / 2], -1)


class Solver:
    def __init__(self, curve: Curve, around=256, layers=64, radius=50.0, softness=4.0, depth=4, ends=(0.25, 0.25)):
        mapped = conformal(curve)
        theta, sigma = spread(around, layers, radius, ends)
        z = mapped(theta, sigma).T.copy()
        t = mapped.wall(theta)
        t = np.append(t, 2 * np.pi)
        t[0] = 0
        mid = (t[1:] + t[:-1]) / 2
        h = 1e-3
        a, b, c = curve(mid - h), curve(mid), curve(mid + h)
        first, twice = (c - a) / (2 * h), (c - 2 * b + a) / h**2
        curvature = (first.conj() * twice).imag / abs(first) ** 3
        self.levels = [Level(z, curvature, softness)]
        while len(self.levels) < depth:
            self.levels.append(coarsened(self.levels[-1], softness))
        self.softness = softness

    def forces(self, l, mach, angle, second=True):
        """lift, drag from level's w"""
        L = self.levels[l]
        p = np.array([loops.wall_pressure(L.w, i, L.height, L.curvature, L.along, second) for i in range(L.shape[1])])
        n = (L.along[0, :, 0] + 1j * L.along[0, :, 1]) * L.along[0, :, 2]
        force = -((p - 1 / GAMMA) * n).sum() / (0.5 * mach**2)
        force *= np.exp(-1j * angle)
        return force.imag, force.real

    def cycle(self, l, top, u, forcing, fars, p):
        L = self.levels[l]
        second = l == top
        for _ in range(p["pre"]):
            L.relax(u, fars[l], second, forcing, p["courant"], p["floor"], p["rounds"])
        if l + 1 < len(self.levels) and l - top < p["depth"]:
            C = self.levels[l + 1]
            r = L.residual(u, fars[l], second)
            if forcing is not None:
                r = r + forcing
            uc = restrict(u * L.volume[..., None]) / restrict(L.volume[..., None])
            start = uc.copy()
            fc = restrict(r) - C.residual(uc, fars[l + 1], False)
            for _ in range(p["gamma"]):
                self.cycle(l + 1, top, uc, fc, fars, p)
            d = prolong(uc - start)
            loops.step(u, np.ascontiguousarray(d), L.w, 0.2)
        for _ in range(p["post"]):
            L.relax(u, fars[l], second, forcing, p["courant"], p["floor"], p["rounds"])
