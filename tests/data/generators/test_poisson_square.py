import numpy as np
import pytest

from ikno.data.generators.poisson_square import PoissonGauss, solve


@pytest.mark.parametrize(("i", "j"), [(1, 1), (2, 5), (7, 3)])
def test_eigenmodes_are_exact(i, j):
    x = np.linspace(0, 1, 33)
    u = np.sin(np.pi * i * x)[:, None] * np.sin(np.pi * j * x)
    np.testing.assert_allclose(solve(np.pi**2 * (i**2 + j**2) * u), u, atol=1e-12)


def test_spectral_against_finite_elements():
    """Quadratic finite elements on a fine mesh find the same solution for one Gaussian."""
    skfem = pytest.importorskip("skfem")
    from skfem.models.poisson import laplace

    def f(x, y):
        return np.exp(-((x - 0.4) ** 2 + (y - 0.55) ** 2) / (2 * 0.08**2))

    steps = np.linspace(0, 1, 65)
    mesh = skfem.MeshTri.init_tensor(steps, steps)
    basis = skfem.Basis(mesh, skfem.ElementTriP2())
    load = skfem.LinearForm(lambda v, w: f(*w.x) * v).assemble(basis)
    u = skfem.solve(*skfem.condense(laplace.assemble(basis), load, D=basis.get_dofs()))
    found = solve(f(steps[:, None], steps))
    nodes = np.rint(mesh.p * 64).astype(int)
    expected = u[basis.nodal_dofs[0]]
    assert np.abs(found[nodes[0], nodes[1]] - expected).max() < 2e-4 * np.abs(expected).max()


def test_samples_have_the_released_shapes_and_solve_their_equation():
    problem = PoissonGauss(resolution=65, points=500)
    cloud = problem.cloud(np.random.default_rng(0))
    assert cloud.shape == (500, 2)
    assert len(np.unique(cloud, axis=0)) == 500
    made = problem.sample(np.random.default_rng(1), cloud)
    again = problem.sample(np.random.default_rng(1), cloud)
    assert made.conditions is not None
    assert made.values.shape == (1, 500, 1)
    assert made.conditions.shape == (1, 500, 1)
    np.testing.assert_array_equal(made.values, again.values)
    assert (made.values >= -1e-6).all()  # the maximum principle: f is positive
    edge = (cloud == 0).any(1) | (cloud == 1).any(1)
    assert (made.values[0, edge] == 0).all()
