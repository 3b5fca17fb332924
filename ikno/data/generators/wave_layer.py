"""The wave equation u_tt = c(x)^2 lap u on the unit square with wavy layers and absorbing boundaries (Wave-Layer)."""

import numpy as np
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from ikno.data.generators import CountRange, Generator, PositiveRange, Range, at_cloud, grid_cloud
from ikno.data.records import Trajectory

REFLECTION = 1e-4  # what the continuous absorbing layer sends back at normal incidence, at the largest speed


def laplacian(u: Float[np.ndarray, "m m"], h: float) -> Float[np.ndarray, "m m"]:
    """Return the fourth-order Laplacian, u mirrored at walls half a step beyond the outer points.

    Per axis (-u[i-2] + 16 u[i-1] - 30 u[i] + 16 u[i+1] - u[i+2]) / (12 h^2): symmetric, so energy is conserved.
    """
    m = u.shape[0]
    v = np.empty((m + 4, m + 4))
    v[2:-2, 2:-2] = u
    v[1::-1, 2:-2], v[-1:-3:-1, 2:-2] = u[:2], u[-2:]
    v[2:-2, 1::-1], v[2:-2, -1:-3:-1] = u[:, :2], u[:, -2:]
    near = v[1:-3, 2:-2] + v[3:-1, 2:-2]
    near += v[2:-2, 1:-3]
    near += v[2:-2, 3:-1]
    near *= 16
    near -= v[:-4, 2:-2]
    near -= v[4:, 2:-2]
    near -= v[2:-2, :-4]
    near -= v[2:-2, 4:]
    near -= 60 * u
    near /= 12 * h**2
    return near


def damping(m: int, layer: int, h: float, fastest: float, shift: float) -> Float[np.ndarray, " _"]:
    """Return the damping rate z(d) = z0 (d / L)^2 at the depth d in a layer of width L, at the points i + shift.

    z0 = 3 c log(1 / R) / (2 L), so that a wave of speed c that crosses the layer twice is damped to R.
    """
    i = np.arange(m) + shift
    depth = np.maximum(np.maximum(layer - i, i - (m - 1 - layer)), 0) / max(layer, 1)
    return 1.5 * fastest * np.log(1 / REFLECTION) / (max(layer, 1) * h) * depth**2


def solve(
    u0: Float[np.ndarray, "m m"],
    speed: Float[np.ndarray, "m m"],
    times: Float[np.ndarray, " times"],
    h: float,
    layer: int = 20,
    velocity: Float[np.ndarray, "m m"] | None = None,
    courant: float = 0.4,
) -> Float[np.ndarray, "times n n"]:
    """Return u at equally spaced times from 0 for u(0) = u0 and u_t(0) = velocity, without the ``layer`` outer points.

    Leap-frog with a perfectly matched layer in second-order form: with damping rates a(x), b(y),
    u_tt + (a + b) u_t + a b u = c^2 (lap u + p_x + q_y), p_t = -a p + (b - a) u_x, q_t = -b q + (a - b) u_y,
    the auxiliary p and q between the grid points, and what is damped averaged over old and new (but a b u is explicit).
    """
    gap = float(times[1] - times[0])
    if times[0] != 0 or not np.allclose(np.diff(times), gap, rtol=1e-9, atol=0) or gap <= 0:
        raise ValueError("times must be equally spaced, increasing and start at 0")
    m, fastest = u0.shape[0], float(speed.max())
    steps = int(np.ceil(gap * fastest / (courant * h) - 1e-9))
    dt = gap / steps
    force = (speed * dt) ** 2
    node, half = damping(m, layer, h, fastest, 0.0), damping(m, layer, h, fastest, 0.5)[:-1]
    loss, product = (node[:, None] + node) * dt / 2, node[:, None] * node * dt**2
    keep, gain = (1 - half * dt / 2) / (1 + half * dt / 2), dt / (2 * h) / (1 + half * dt / 2)
    keep_p, gain_p = keep[:, None], gain[:, None] * (node - half[:, None])
    p, slope_p = np.zeros((m - 1, m)), np.diff(u0, axis=0)
    q, slope_q = np.zeros((m, m - 1)), np.diff(u0, axis=1)

    def acceleration(u: Float[np.ndarray, "m m"]) -> Float[np.ndarray, "m m"]:
        """Return dt^2 u_tt without the term in u_t."""
        a = laplacian(u, h)
        if not layer:
            return a * force
        a[:-1] += p / h
        a[1:] -= p / h
        a[:, :-1] += q / h
        a[:, 1:] -= q / h
        return a * force - product * u

    old, u = u0, u0 + acceleration(u0) / 2
    if velocity is not None:
        u = u + (1 - loss) * dt * velocity
    inner = slice(layer, m - layer)
    found = [u0[inner, inner]]
    for step in range(1, steps * (len(times) - 1) + 1):
        if step % steps == 0:
            found.append(u[inner, inner])
        if layer:
            last_p, slope_p = slope_p, np.diff(u, axis=0)
            p = keep_p * p + gain_p * (slope_p + last_p)
            last_q, slope_q = slope_q, np.diff(u, axis=1)
            q = keep * q + gain_p.T * (slope_q + last_q)
        old, u = u, (2 * u - (1 - loss) * old + acceleration(u)) / (1 + loss)
    return np.stack(found)


def mix(
    heights: Float[np.ndarray, "interfaces m"],
    speeds: Float[np.ndarray, " layers"],
    y: Float[np.ndarray, " m"],
    h: float,
) -> Float[np.ndarray, "m m"]:
    """Return c on a grid: sharp for h = 0, else with 1 / c^2 averaged over y - h / 2 to y + h / 2.

    The average moves an interface continuously through the grid: an interface between points keeps its place.
    """
    below = heights[..., None] - y
    part = (below / h + 0.5).clip(0, 1) if h else (below > 0).astype(float)
    squares = speeds**-2
    inverse = squares[-1] - np.tensordot(np.diff(squares), part, 1)
    return inverse**-0.5


class WaveLayer(Generator):
    """u0 = sum of 2 to 6 unit Gaussians, u_t(0) = 0, and 3 to 6 layers stacked in y with one wave speed each.

    Layers have thicknesses proportional to U[.5,1.5]. An interface is displaced by three sines in x of wave numbers
    1, 2, 3, by at most ``waviness`` of the thinner of the two layers it divides, so that interfaces never cross.
    ``speed_scale`` is the distance, in sides of the square, that a wave of unit speed travels in the time 0 to 1. It is
    not published; the default gives the published ratio of mean to standard deviation of u, .33. Both are 2.5 times
    the published ones, which no speed can mend: u0 and 14 snapshots of zeros would still have a deviation of .12.
    The boundary is open: the solver works on a square that is wider by ``margin`` on each side (so that Gaussians
    which reach over the boundary are followed outside) and by ``layer`` grid points of absorbing layer; c is
    continued constantly outward. ``resolution`` counts points per axis, boundary included.
    """

    resolution: PositiveInt = Field(default=128, ge=8)
    points: PositiveInt | None = 9216
    snapshots: PositiveInt = Field(default=15, ge=2)
    gaussians: CountRange = (2, 6)
    center: Range = (1 / 6, 5 / 6)
    width: PositiveRange = (0.039, 0.156)
    layers: CountRange = (3, 6)
    speed: PositiveRange = (2000.0, 5000.0)
    waviness: NonNegativeFloat = Field(default=0.3, lt=0.5)
    speed_scale: PositiveFloat = 2.6e-4
    margin: NonNegativeFloat = 0.25
    layer: PositiveInt = Field(default=20, ge=8)  # the explicit a b u is unstable below 3, and few points reflect

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(np.linspace(0, 1, self.snapshots).tolist())

    def cloud(self, rng: np.random.Generator) -> Float[np.ndarray, "points dim"]:
        return grid_cloud(self.resolution, self.points, rng, periodic=False)

    def draw_start(
        self, rng: np.random.Generator, x: Float[np.ndarray, " m"], y: Float[np.ndarray, " m"]
    ) -> Float[np.ndarray, "m m"]:
        """Return a random u0 = sum exp(-|x - x_i|^2 / (2 s_i^2)) on a grid."""
        count = rng.integers(*self.gaussians, endpoint=True)
        centers, widths = rng.uniform(*self.center, (count, 2)), rng.uniform(*self.width, count)
        u0 = np.zeros((len(x), len(y)))
        for (a, b), s in zip(centers, widths, strict=True):
            u0 += np.exp(-((x - a) ** 2) / (2 * s**2))[:, None] * np.exp(-((y - b) ** 2) / (2 * s**2))
        return u0

    def draw_layers(
        self, rng: np.random.Generator, x: Float[np.ndarray, " m"]
    ) -> tuple[Float[np.ndarray, "interfaces m"], Float[np.ndarray, " layers"]]:
        """Return the heights of random interfaces at x, from below, and the wave speeds of the layers they divide."""
        count = rng.integers(*self.layers, endpoint=True)
        thickness = rng.uniform(0.5, 1.5, count)
        thickness /= thickness.sum()
        k = np.arange(1, 4)
        weights = rng.uniform(-1, 1, (count - 1, 3)) / k / (1 / k).sum()
        phases = rng.uniform(0, 2 * np.pi, (count - 1, 3))
        waves = (weights[..., None] * np.sin(2 * np.pi * k[:, None] * x + phases[..., None])).sum(1)
        room = self.waviness * np.minimum(thickness[:-1], thickness[1:])
        return np.cumsum(thickness)[:-1, None] + room[:, None] * waves, rng.uniform(*self.speed, count)

    def sample(self, rng: np.random.Generator, cloud: Float[np.ndarray, "points dim"] | None) -> Trajectory:
        assert cloud is not None
        n = self.resolution
        h, margin = 1 / (n - 1), round(self.margin * (n - 1))
        outer = margin + self.layer
        x = np.arange(-outer, n + outer) * h
        inside = x.clip(0, 1)  # continues c constantly outward
        u0 = self.draw_start(rng, x, x)
        heights, speeds = self.draw_layers(rng, inside)
        c = mix(heights, speeds, inside, h)
        u = solve(u0, c * self.speed_scale, np.array(self.times), h, self.layer)
        u = u[:, margin : margin + n, margin : margin + n]
        sharp = mix(heights, speeds, inside, 0.0)[outer : outer + n, outer : outer + n]
        return Trajectory(
            cloud, at_cloud(u, cloud, periodic=False)[..., None], at_cloud(sharp, cloud, periodic=False)[None, :, None]
        )
