"""Programs of JAX with sternway's calls: stored, exported, donated, run by many threads, beside each other."""

from __future__ import annotations

import concurrent.futures
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter import python

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import sternway as sw  # noqa: E402
import sternway.jax as sj  # noqa: E402
from sternway import _library  # noqa: E402
from sternway.jax import _call  # noqa: E402


def test_import_of_sternway_does_not_import_jax() -> None:
    done = python("""
        import sys, sternway, sternway.errors
        assert "jax" not in sys.modules
        sys.modules["jax"] = None
        try:
            import sternway.jax
        except ImportError as error:
            print(error)
    """)
    assert done.stdout == "sternway.jax needs JAX: pip install jax\n"


def test_options_of_one_shape_are_kept_apart() -> None:
    x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    found = {
        (axis, reverse): jax.jit(lambda x, axis=axis, reverse=reverse: sj.cumsum(x, axis, reverse))(x).tolist()
        for axis in (0, 1)
        for reverse in (False, True)
    }
    assert found == {
        (0, False): [[1, 2], [4, 6]], (0, True): [[4, 6], [3, 4]], (1, False): [[1, 3], [3, 7]], (1, True): [[3, 2], [7, 4]],
    }  # fmt: skip
    y, dy = jnp.ones(2), jnp.ones(2)
    for weight in (0.0, -0.0):
        db = jax.vjp(lambda b, weight=weight: sj.lerp(y, b, weight), y)[1](dy)[0]
        assert np.signbit(db).tolist() == [np.signbit(weight)] * 2


def test_caches_are_bounded() -> None:
    """Calls of ever new shapes or options do not fill the memory."""
    modules = [module for name, module in sys.modules.items() if name.startswith("sternway.jax.")]
    caches = {name: x for module in modules for name, x in vars(module).items() if hasattr(x, "cache_parameters")}
    unbounded = {name for name, x in caches.items() if x.cache_parameters()["maxsize"] is None}
    assert len(caches) > 10
    assert unbounded == {"register", "_cuda_devices"}  # which have no arguments


def test_many_threads() -> None:
    """Calls of a few programs from many threads, which first meet them at once."""
    step = jax.jit(jax.value_and_grad(lambda x: (sj.cumprod(x) * sj.cummax(x)).sum()))

    def run(k: int) -> Any:
        x = jnp.linspace(0.5, 1.5, 50 + k % 4).at[3].set(k)
        value, gradient = step(x)
        return k, float(value), np.asarray(gradient)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, range(200)))
    for k, value, gradient in (found[0], found[77], found[199]):
        _, again, same = run(k)
        assert value == again
        np.testing.assert_array_equal(gradient, same)


def test_a_donated_operand() -> None:
    x = jnp.arange(1.0, 5.0)
    step = jax.jit(lambda x: sj.cumsum(x) + 1, donate_argnums=0)
    assert step(step(x)).tolist() == [3, 7, 14, 25]


def test_inside_loops_and_checkpoints() -> None:
    def body(carry: Any, x: Any) -> Any:
        y = sj.cumsum(carry * x)
        return y, y.sum()

    def loss(x: Any) -> Any:
        return jax.lax.scan(jax.checkpoint(body), jnp.ones(3), x)[1].sum()

    def plain(x: Any) -> Any:
        return jax.lax.scan(lambda c, x: ((y := jnp.cumsum(c * x)), y.sum()), jnp.ones(3), x)[1].sum()

    x = jnp.linspace(0.1, 1, 12).reshape(4, 3)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), jax.grad(plain)(x), rtol=1e-5)


CACHED = """
    import jax, jax.numpy as jnp, sternway.jax as sj
    jax.config.update("jax_compilation_cache_dir", {folder!r})
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    hits = []
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
    {before}
    x = jnp.array([2.0, 0.0, 3.0, 4.0])
    print(jax.jit(jax.grad(lambda x: sj.cumprod(x).sum()))(x).tolist(), "/jax/compilation_cache/cache_hits" in hits)
"""


def test_the_persistent_compilation_cache(tmp_path: Path) -> None:
    """The second process selects other plans first, so that handles of the first one would mean others."""
    first = python(CACHED.format(folder=str(tmp_path), before=""))
    assert first.stdout == "[1.0, 32.0, 0.0, 0.0] False\n"
    second = python(CACHED.format(folder=str(tmp_path), before="import sternway as sw, numpy as np; sw.cumsum(np.ones(3))"))
    assert second.stdout == "[1.0, 32.0, 0.0, 0.0] True\n"


def test_export(tmp_path: Path) -> None:
    """A program that is exported here runs in a process that only imports sternway.jax."""
    from jax import export

    checks = [export.DisabledSafetyCheck.custom_call("sternway")]
    exported = export.export(jax.jit(sj.cumprod), disabled_checks=checks)(jax.ShapeDtypeStruct((4,), jnp.float32))
    (tmp_path / "program").write_bytes(exported.serialize())
    done = python(f"""
        import jax, jax.numpy as jnp, pathlib, sternway.jax
        from jax import export
        program = export.deserialize(pathlib.Path({str(tmp_path / "program")!r}).read_bytes())
        print(program.call(jnp.array([2.0, 1.0, 3.0, 0.0])).tolist())
    """)
    assert done.stdout == "[2.0, 2.0, 6.0, 0.0]\n"


def test_lowering_for_cuda_needs_no_gpu() -> None:
    """The program for CUDA names the same target."""
    lowered = jax.jit(sj.cumsum).trace(jnp.ones(3)).lower(lowering_platforms=("cuda",))
    assert re.search(r"custom_call @sternway\(", lowered.as_text())


def test_a_device_without_kernels_runs_on_the_host(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """As if JAX had a CUDA device that sternway cannot use: the program for CUDA calls back, that of the CPU does not."""
    monkeypatch.setattr(_call, "_cuda_devices", lambda: ("cuda:0",))
    monkeypatch.setattr(_call, "_selectable", _call._selectable.__wrapped__)
    monkeypatch.setenv("STERNWAY_BACKEND", "")
    jax.clear_caches()  # of traces that saw the devices of this machine
    x = jnp.array([1.0, 5.0, 3.0, 11.0])
    with caplog.at_level("WARNING", logger=_library.log.name):
        step = jax.jit(lambda x: sj.cumsum(x, reverse=True) + 0)
        assert step(x).tolist() == [20, 19, 14, 11]
    if not _library.info()["devices"]:
        assert "computed on the host" in caplog.text
        assert "pure_callback" in str(step.trace(x).jaxpr)
    assert "@sternway" in step.lower(x).as_text()
    results = (_call._Operand("y", (2, 3), np.dtype(jnp.bfloat16)),)
    problem = sw.ScanDescriptor("cumsum", (2, 3), "bfloat16").to_json()
    (y,) = _call._on_host(sw.ScanPlan, problem, ("x",), results, (jnp.bfloat16,), jnp.ones((2, 3), jnp.bfloat16))
    assert y.tolist() == [[1, 2, 3]] * 2


@pytest.mark.parametrize("devices", [(), ("cuda:0",)])
def test_another_platform_runs_on_the_host(monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...]) -> None:
    """As if JAX had a TPU, for which XLA has no target of sternway: the program for it calls back, that of the CPU does not."""
    monkeypatch.setattr(_call, "_cuda_devices", lambda: devices)
    monkeypatch.setattr(_call, "_selectable", lambda *_: False)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    x = jnp.array([1.0, 5.0, 3.0, 11.0])
    step = jax.jit(lambda x: sj.cumsum(x, reverse=True) * 2)
    assert "pure_callback" in str(step.trace(x).jaxpr)
    assert "@sternway" in step.trace(x).lower(lowering_platforms=("cpu",)).as_text()
    assert step(x).tolist() == [40, 38, 28, 22]


@pytest.mark.gpu
def test_on_cuda_under_graphs_and_on_another_device() -> None:
    """A program runs on each device of JAX, and again from a CUDA graph."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        pytest.skip("JAX has no CUDA device")
    step = jax.jit(lambda x: jax.value_and_grad(lambda x: sj.cumlogsumexp(sj.cumprod(x)).sum())(x))
    x = jnp.linspace(0.5, 1.5, 1000)
    want = step(jax.device_put(x, jax.local_devices(backend="cpu")[0]))
    for device in devices:
        for _ in range(5):
            found = step(jax.device_put(x, device))
            jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4), found, want)
