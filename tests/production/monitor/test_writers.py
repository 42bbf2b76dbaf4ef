"""Each writer read back, and writers that fail."""

import json
import logging
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import equipoise as eq
from equipoise.errors import MissingExtraError
from equipoise.production.monitor import (
    JsonLinesWriter,
    MLflowWriter,
    OpenTelemetryWriter,
    PrometheusWriter,
    TensorBoardWriter,
    WandbWriter,
    Writer,
)
from tests.production.monitor.streams import batches
from tests.support.waiting import HANG


class Noting:
    """A writer that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.lines.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


class Failing(Noting):
    """A writer on a disk that is full."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")


def watched(*writers: Writer, rows: int = 10, count: int = 4, window: int = 40) -> eq.Monitor:
    monitor = eq.Monitor(window=window, writers=writers)
    for batch in batches([rows] * count):
        monitor.observe(batch.logits, batch.step)
    return monitor


def test_gauges_are_written_for_each_tenth_of_a_window() -> None:
    noting = Noting()
    monitor = watched(noting, rows=3, count=20, window=100)
    assert [step for step, _ in noting.lines] == [12, 24, 36, 48, 60]
    assert noting.lines[-1][1] == monitor.gauges()
    monitor.close()
    assert noting.closed


def test_a_writer_that_fails_is_reported_once_counted_and_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noting = Noting()
    with caplog.at_level(logging.WARNING):
        monitor = watched(Failing(), noting)
        monitor.close()
    assert len(noting.lines) == 4
    assert noting.closed
    assert [record.getMessage() for record in caplog.records] == [
        "Failing failed and will be tried again, without another warning: OSError: [Errno 28] "
        "No space left on device"
    ]
    assert monitor.totals()["writer_failures"] == 5


def test_prometheus_shows_the_last_gauges_of_each_stream() -> None:
    registry = CollectorRegistry()
    writers = [PrometheusWriter(stream, registry) for stream in ("a", "b")]
    monitor = watched(writers[0])
    writers[1].log({"accuracy": 0.25}, 7)

    def value(name: str, stream: str) -> float | None:
        return registry.get_sample_value(f"equipoise_{name}", {"stream": stream})

    for name, expected in monitor.gauges().items():
        assert value(name, "a") == expected
    assert value("stream_samples", "a") == 40
    assert (value("accuracy", "b"), value("confidence", "b")) == (0.25, None)
    assert generate_latest(registry).decode().count("# TYPE equipoise_accuracy gauge") == 1
    writers[0].log({"confidence": 0.5}, 50)
    assert (value("accuracy", "a"), value("confidence", "a")) == (None, 0.5)
    writers[0].close()
    assert (value("confidence", "a"), value("accuracy", "b")) == (None, 0.25)


def test_open_telemetry_records_gauges_with_the_stream() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monitor = watched(OpenTelemetryWriter("camera", provider.get_meter("test")))
    monitor.close()
    data: Any = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    found = {metric.name: metric.data.data_points[0] for metric in scope.metrics}
    for name, expected in monitor.gauges().items():
        assert found[f"equipoise.{name}"].value == expected
        assert found[f"equipoise.{name}"].attributes == {"stream": "camera"}
    assert found["equipoise.stream_samples"].value == 40
    provider.shutdown()


def test_open_telemetry_takes_the_global_meter() -> None:
    OpenTelemetryWriter().log({"accuracy": 0.5}, 1)  # nobody has set up an SDK: dropped


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_event_files_have_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monitor = watched(TensorBoardWriter(tmp_path / "run"))
    monitor.close()
    read = EventAccumulator(str(tmp_path / "run"))
    read.Reload()
    points = read.Scalars("monitor/confidence")
    assert [point.step for point in points] == [10, 20, 30, 40]
    assert points[-1].value == pytest.approx(monitor.gauges()["confidence"])


def test_json_lines_have_step_time_and_gauges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 5.0)
    path = tmp_path / "gauges.jsonl"
    writer = JsonLinesWriter(path)
    monitor = watched(writer)
    writer.log({"nll": float("inf")}, 41)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30, 40, 41]
    assert lines[3] == {"time": 5.0, "step": 40, **monitor.gauges()}
    assert lines[4]["nll"] is None
    watched(JsonLinesWriter(path)).close()
    assert len(path.read_text().splitlines()) == 9  # appended
    with pytest.raises(FileNotFoundError):
        JsonLinesWriter(tmp_path / "nowhere" / "gauges.jsonl")


def module(monkeypatch: pytest.MonkeyPatch, name: str, function: str) -> list[tuple[Any, dict[str, Any]]]:
    """A stand-in for a package that is not installed here, which notes the calls of a function."""
    calls: list[tuple[Any, dict[str, Any]]] = []
    fake = ModuleType(name)
    setattr(fake, function, lambda values, **options: calls.append((values, options)))
    monkeypatch.setitem(sys.modules, name, fake)
    return calls


def test_mlflow_gets_all_gauges_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = module(monkeypatch, "mlflow", "log_metrics")
    monitor = watched(MLflowWriter("run 1"))
    monitor.close()
    assert len(calls) == 4
    assert calls[-1] == (monitor.gauges(), {"step": 40, "run_id": "run 1"})


def test_wandb_gets_the_number_of_samples_as_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = module(monkeypatch, "wandb", "log")
    monitor = watched(WandbWriter())
    monitor.close()
    expected = {f"monitor/{name}": value for name, value in monitor.gauges().items()}
    assert calls[-1] == ({**expected, "monitor/step": 40}, {})


@pytest.mark.parametrize(
    ("package", "make", "words"),
    [
        ("prometheus_client", PrometheusWriter, r"equipoise\[serve\]"),
        ("opentelemetry.metrics", OpenTelemetryWriter, "opentelemetry-sdk"),
        ("torch.utils.tensorboard", lambda: TensorBoardWriter("run"), "tensorboard"),
        ("mlflow", MLflowWriter, "mlflow"),
        ("wandb", WandbWriter, "wandb"),
    ],
)
def test_a_missing_package_is_named(
    package: str, make: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"pip install .*{words}"):
        make()


def test_a_monitor_can_be_read_while_a_writer_waits() -> None:
    monitor = eq.Monitor(window=10)
    seen: list[dict[str, float]] = []

    class Reading(Noting):
        def log(self, values: Mapping[str, float], step: int) -> None:
            with ThreadPoolExecutor(1) as other:
                seen.append(other.submit(monitor.gauges).result(HANG))

    monitor = eq.Monitor(window=10, writers=[Reading()])
    monitor.observe(torch.zeros(5, 2), None)
    assert seen[0]["samples"] == 5
