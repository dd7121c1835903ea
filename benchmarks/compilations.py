"""What XLA compiles, and how long that takes."""

from dataclasses import dataclass

import jax

__all__ = ["Compilations"]

_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"


@dataclass
class Compilations:
    """Compilations of this process inside a ``with`` block.

    Attributes
    ----------
    total
        How many there were.
    seconds
        What XLA took for them, summed; some may have run side by side.
    preparation
        What JAX took to trace and lower them, seconds; functions that others trace count twice.
    """

    total: int = 0
    seconds: float = 0.0
    preparation: float = 0.0

    def __enter__(self) -> "Compilations":
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration: float, **_) -> None:
        if event == _COMPILE:
            self.total += 1
            self.seconds += duration
        elif event in (_TRACE, _LOWER):
            self.preparation += duration
