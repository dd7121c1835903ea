"""Functions compiled into one kernel: the same results, and where XLA cannot."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bdtppl import ParticleTreeClassifier
from bdtppl.inference import compiling
from bdtppl.inference.compiling import OneKernel


def rounds(number, body, x):
    return lax.fori_loop(0, number, lambda _, x: body(x), x)


def compiled(body, **options):
    def function(given, unused):
        return rounds(5, body, given["x"]), given["y"] + 1

    function = OneKernel(function, compiler_options=options)
    return function, ({"x": jnp.linspace(0.1, 1.0, 12), "y": jnp.zeros(0)}, np.float32(3))


BODIES = {
    "elements": lambda x: jnp.sin(x) * jnp.exp(-x),
    "gather": lambda x: x[np.arange(12)[::-1]] * 1.1,
    "running sums": lambda x: jnp.cumsum(x) / 12,
    "loop within": lambda x: lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x),
    "update": lambda x: x.at[3].set(x[4] * 2),
    "products": lambda x: jnp.outer(x, x) @ x,
    "condition": lambda x: lax.cond(x[0] > 0.5, jnp.sin, jnp.cos, x),
}

USUAL = {"xla_cpu_use_fusion_emitters": True}  # which tests switch off


@pytest.mark.parametrize("name", BODIES)
def test_one_kernel_computes_the_same(name):
    function, given = compiled(BODIES[name])
    assert function.is_one(*given)
    np.testing.assert_allclose(function(*given)[0], function.plain(*given)[0], rtol=1e-6)
    text = function.marked.lower(*given).compile().as_text()
    main = text[text.index("ENTRY") :]
    assert " call(" in main
    assert " while(" not in main


@pytest.mark.parametrize(
    "body", [jnp.sort, lambda x: x.at[jnp.int32(x * 5)].add(1.0)], ids=["sort", "scatter"]
)
def test_what_cannot_be_one_kernel_is_compiled_as_usual(body):
    function, given = compiled(body, **USUAL)
    with pytest.raises(jax.errors.JaxRuntimeError):
        function.marked(*given)
    assert not function.is_one(*given)
    for _ in range(2):
        np.testing.assert_allclose(function(*given)[0], rounds(5, body, given[0]["x"]), rtol=1e-6)
    assert function.plain._cache_size() == 1


def test_an_option_that_xla_does_not_know_is_told():
    function, given = compiled(BODIES["elements"], no_such_option=True)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        function(*given)


def test_a_function_is_compiled_as_usual_where_an_option_is_gone(monkeypatch):
    monkeypatch.setattr(compiling, "_PLAINLY", {"no_such_option": True})
    function = compiling.compiled_plainly(lambda x, *, n: x * n, static_argnames=("n",))
    assert function(2.0, n=3) == 6


KEPT = """
import os, sys
import jax, bdtppl
folder = bdtppl.keep_compiled_code(sys.argv[1] or None)
jax.monitoring.register_event_listener(lambda event, **_: print(event))
jax.jit(lambda x: sum(jax.numpy.sort(jax.numpy.sin(k * x)) for k in range(20)))(
    jax.numpy.ones((20, 20))
)  # takes longer to compile than what is too quick to be kept
print(folder)
"""


@pytest.mark.parametrize("given", ["kept", ""])
def test_compiled_code_is_kept_for_the_next_process(tmp_path, given):
    def found():
        folder = given and str(tmp_path / given)
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", KEPT, folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == (folder or str(tmp_path / "bdtppl"))
        return "/jax/compilation_cache/cache_hits" in done.stdout

    assert not found()
    assert found()


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["_MOST_MAPS", "_MOST_MEMORY"])
def test_a_process_that_fits_many_models_keeps_room_to_compile(monkeypatch, limit):
    X, y = np.arange(12.0)[:, None], np.arange(12) % 2
    model = ParticleTreeClassifier(particles=20, random_state=0).fit(X, y)
    function, given = compiled(BODIES["elements"])
    function.plain(*given)
    for name, value in {"_MOST_MEMORY": np.inf, "_FEW_GB": 0.0, "_left": [0.0]}.items():
        monkeypatch.setattr(compiling, name, value)
    compiling.make_room()
    assert function.plain._cache_size() == 1
    monkeypatch.setattr(compiling, limit, 0)
    again = ParticleTreeClassifier(particles=20, random_state=0).fit(X, y)
    assert function.plain._cache_size() == (not compiling._MAPS.exists())
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
