import io
from pathlib import Path

import pytest
from rich.console import Console

from equipoise import demo
from equipoise.demo.progress import Stages


def test_elsewhere_than_in_a_terminal_a_stage_is_one_line() -> None:
    text = io.StringIO()
    with Stages(Console(file=text), stages=2) as stages:
        for name in ("first", "second"):
            with stages.stage(name, steps=3) as after_step:
                after_step()
    assert text.getvalue() == "first\nsecond\n"


def test_in_a_terminal_bars_come_and_go() -> None:
    text = io.StringIO()
    with (
        Stages(Console(file=text, force_terminal=True), stages=1) as stages,
        stages.stage("first", 2) as done,
    ):
        done()
        done()
    assert "first" in text.getvalue()
    assert "whole demo" in text.getvalue()


def test_an_interrupt_passes_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "load_domains", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path, quick=True, console=Console(file=io.StringIO()))
    assert list(tmp_path.iterdir()) == []
