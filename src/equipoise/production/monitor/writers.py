"""Writers of gauges, whose programs are imported when a writer is made."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from equipoise.core.lock import CallLock
from equipoise.errors import MissingExtraError

_LOG = logging.getLogger(__name__)
_PREFIX = "equipoise"

_FAMILIES: "WeakKeyDictionary[Any, dict[str, Any]]" = WeakKeyDictionary()
"""The gauges of each registry: a registry takes a name once, and the streams share it."""


class Writer(Protocol):
    """Anything that takes the gauges of a monitor."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take gauges by name; `step` is the number of samples so far."""

    def close(self) -> None:
        """Write what is left."""


class Writers:
    """Writers whose failures (a full disk, a network that is down) break nothing.

    The first failure of each is logged as a warning; all are counted.

    Attributes:
        failures: the number of calls that failed.
    """

    def __init__(self, writers: Iterable[Writer]) -> None:
        self._writers = tuple(writers)
        self._failed: set[int] = set()
        self._lock = CallLock()
        self.failures = 0

    def __bool__(self) -> bool:
        return bool(self._writers)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Give the values to each writer."""
        self._attempt(lambda writer: writer.log(values, step))

    def close(self) -> None:
        """Close each writer."""
        self._attempt(lambda writer: writer.close())

    def _attempt(self, call: Callable[[Writer], None]) -> None:
        with self._lock:
            for index, writer in enumerate(self._writers):
                if (error := _error_of(call, writer)) is not None:
                    self._note(index, error)

    def _note(self, index: int, error: Exception) -> None:
        self.failures += 1
        if index not in self._failed:
            self._failed.add(index)
            name = type(self._writers[index]).__name__
            _LOG.warning(
                "%s failed and will be tried again, without another warning: %s: %s",
                name,
                type(error).__name__,
                error,
            )


def _error_of(call: Callable[[Writer], None], writer: Writer) -> Exception | None:
    """The error of a call, of whatever kind: a writer may be anybody's."""
    try:
        call(writer)
    except Exception as error:
        return error
    return None


def _program(module: str, writer: Writer, name: str, package: str) -> Any:
    """The module of the program that a writer writes for; MissingExtraError says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{type(writer).__name__} needs {name}: pip install {package}") from error


class JsonLinesWriter:
    """Appends a line of JSON for each call: time (seconds since 1970), step, and the gauges by name.

    A number that is not finite is null, as JSON has no other. The file is opened for each line: it may be
    moved away at any time, and a new one begins.

    Args:
        path: of the file; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with self._path.open("a", encoding="utf-8"):
            pass  # a path that cannot be written is refused now

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Append a line."""
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "step": step, **plain}) + "\n")

    def close(self) -> None:
        """Nothing: each line is written already."""


class PrometheusWriter:
    """Sets gauges `equipoise_NAME{stream="…"}` in a registry of prometheus-client.

    A gauge that is missing from a call (an accuracy while nothing is estimated) is removed, so that no old
    value is read for a new one. Serve the registry with `prometheus_client.start_http_server` or your own
    /metrics.

    Args:
        stream: the value of the label `stream`.
        registry: of prometheus-client; None for its default one.
    """

    def __init__(self, stream: str = "", registry: Any = None) -> None:
        prometheus_client = _program("prometheus_client", self, "prometheus-client", "'equipoise[serve]'")
        self._stream, self._gauge = stream, prometheus_client.Gauge
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._families = _FAMILIES.setdefault(self._registry, {})
        self._shown: set[str] = set()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Set the gauges."""
        shown = {**values, "stream_samples": float(step)}
        for name in self._shown - shown.keys():
            self._families[name].remove(self._stream)
        self._shown = set(shown)
        for name, value in shown.items():
            if name not in self._families:
                self._families[name] = self._gauge(
                    f"{_PREFIX}_{name}", f"{name} of a monitored stream", ["stream"], registry=self._registry
                )
            self._families[name].labels(self._stream).set(value)

    def close(self) -> None:
        """Remove the gauges of the stream."""
        for name in self._shown:
            self._families[name].remove(self._stream)
        self._shown = set()


class OpenTelemetryWriter:
    """Records gauges `equipoise.NAME` with the attribute `stream`, through the metrics API of OpenTelemetry.

    Without an SDK that the program has set up, the API drops them silently.

    Args:
        stream: the value of the attribute `stream`.
        meter: an OpenTelemetry meter; None for one named "equipoise" of the global provider.
    """

    def __init__(self, stream: str = "", meter: Any = None) -> None:
        if meter is None:
            metrics = _program("opentelemetry.metrics", self, "OpenTelemetry", "opentelemetry-sdk")
            meter = metrics.get_meter(_PREFIX)
        self._meter, self._attributes = meter, {"stream": stream}
        self._gauges: dict[str, Any] = {}

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record the gauges."""
        for name, value in {**values, "stream_samples": float(step)}.items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(f"{_PREFIX}.{name}")
            self._gauges[name].set(value, self._attributes)

    def close(self) -> None:
        """Nothing: the provider exports, and belongs to the program."""


class TensorBoardWriter:
    """Writes scalars `monitor/NAME` into event files.

    Args:
        folder: of the event files, `tensorboard --logdir FOLDER` shows it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        program = _program("torch.utils.tensorboard", self, "TensorBoard", "tensorboard")
        self._writer = program.SummaryWriter(os.fspath(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the scalars of a step."""
        for name, value in values.items():
            self._writer.add_scalar(f"monitor/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class MLflowWriter:
    """Logs metrics to a run of MLflow, one call for all gauges; with a remote server the call waits for it.

    Args:
        run: the id of the run; None for the active one.
    """

    def __init__(self, run: str | None = None) -> None:
        self._mlflow, self._run = _program("mlflow", self, "MLflow", "mlflow"), run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step."""
        self._mlflow.log_metrics(dict(values), step=step, run_id=self._run)

    def close(self) -> None:
        """Nothing: the run belongs to the program."""


class WandbWriter:
    """Logs gauges as `monitor/NAME` to a run of W&B, with the number of samples as `monitor/step`.

    W&B's own step must grow from call to call, also over what the program logs beside; so it is left alone.

    Args:
        run: a run; None for the current one, `wandb.run`.
    """

    def __init__(self, run: Any = None) -> None:
        wandb = _program("wandb", self, "W&B", "wandb")
        self._to = wandb if run is None else run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the gauges of a step."""
        self._to.log({**{f"monitor/{name}": value for name, value in values.items()}, "monitor/step": step})

    def close(self) -> None:
        """Nothing: the run belongs to the program."""
