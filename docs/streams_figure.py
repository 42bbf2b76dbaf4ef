"""The picture of the kinds of streams, for light and for dark pages.

python -m docs.streams_figure      # in the root of the repository, writes two files in docs/assets
"""

from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from equipoise.research.data import ImageKindName, ImageStream, make_image_stream
from equipoise.research.data.changing_corruptions import CorruptionWalk
from tests.docs.pages import DOCS

IMAGES, CLASSES, DOMAINS = 120, 5, 4
CLASS_COLOURS = ("#1c9aad", "#e8590c", "#7950f2", "#f0b400", "#37a048")
CHANGING_COLOURS = ("#364fc7", "#a61e4d", "#5c940d", "#e67700", "#0b7285")
THEMES = {
    "light": {"text": "#37474f", "domains": ("#d5dde1", "#a3b3bb", "#6f838d", "#3c4f59")},
    "dark": {"text": "#cfd8dc", "domains": ("#3c4f59", "#6f838d", "#a3b3bb", "#d5dde1")},
}
KINDS: dict[ImageKindName, tuple[int, dict[str, Any], str]] = {
    "shuffled": (1, {}, "one domain at random"),
    "recorded": (1, {}, "one domain as it comes"),
    "sorted": (4, {}, "class after class"),
    "mixed": (4, {}, "all domains at random"),
    "continual": (4, {}, "domain after domain"),
    "gradual": (4, {}, "tier by tier, up and down"),
    "recurring": (4, {"passes": 4}, "the same again and again"),
    "abrupt": (4, {"stretch": 12}, "switches at random places"),
    "correlated": (4, {}, "classes in bursts"),
    "imbalanced": (4, {"ratio": 20}, "some classes are rare"),
    "noisy": (4, {"share": 0.25}, "some images of no class"),
    "changing": (1, {"transition": 30, "length": IMAGES, "severity": 5}, "from corruption to corruption"),
}
"""The domains and options of each kind, and its heading."""


def example(kind: ImageKindName) -> tuple[ImageStream, torch.Tensor]:
    """A small stream of a kind, and its labels."""
    domains, options, _ = KINDS[kind]
    # So many that the streams are about as long as each other.
    size = {"recurring": IMAGES // 16, "gradual": IMAGES // 7, "imbalanced": 3 * IMAGES // 4}.get(kind)
    places = torch.arange(size or IMAGES // domains)
    labels = [(places // 6 if kind == "recorded" else places) % CLASSES] * domains
    stream = make_image_stream(labels, kind, 3, **options)
    return stream, stream.labels(labels)


def strip(axes: Axes, values: torch.Tensor, colours: tuple[str, ...], low: int = 0) -> None:
    """One image beside the other, coloured by a number."""
    axes.imshow(
        values.view(1, -1).numpy(),
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap(list(colours)),
        vmin=low,
        vmax=low + len(colours) - 1,
    )


def severities(axes: Axes, walk: CorruptionWalk) -> None:
    """The severities of the corruptions over time, one on top of the other."""
    used = walk.cycle[:5]
    heights = np.zeros((len(used), IMAGES))
    for place in range(IMAGES):
        for name, severity in walk.severities(place):
            heights[used.index(name), place] += severity
    axes.stackplot(np.arange(IMAGES), heights, colors=CHANGING_COLOURS, lw=0)
    axes.set_xlim(0, IMAGES - 1)
    axes.set_ylim(0, heights.sum(0).max())


def draw(figure: Figure, theme: dict[str, Any]) -> None:
    """A panel for each kind: its classes above, its domains below."""
    panels = figure.add_gridspec(len(KINDS) // 3, 3, hspace=0.75, wspace=0.1, left=0.01, right=0.99, top=0.94)
    for place, (kind, (_, _, heading)) in enumerate(KINDS.items()):
        stream, labels = example(kind)
        rows = panels[place // 3, place % 3].subgridspec(2, 1, hspace=0.12)
        upper, lower = (figure.add_subplot(rows[row]) for row in (0, 1))
        upper.set_title(kind, loc="left", fontsize=11, fontweight="bold", color=theme["text"], pad=4)
        upper.set_title(heading, loc="right", fontsize=9, color=theme["text"], pad=4)
        strip(upper, labels, (theme["text"], *CLASS_COLOURS), low=-1)
        if isinstance(stream.change, CorruptionWalk):
            severities(lower, stream.change)
        else:
            strip(lower, stream.domains, theme["domains"])
        for axes in (upper, lower):
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(False)
    figure.legend(
        handles=[
            *(Patch(color=colour, label=f"class {k}") for k, colour in enumerate(CLASS_COLOURS, 1)),
            Patch(color=theme["text"], label="no class"),
            *(Patch(color=colour, label=f"domain {k}") for k, colour in enumerate(theme["domains"], 1)),
        ],
        loc="lower center",
        ncols=10,
        fontsize=8.5,
        frameon=False,
        labelcolor=theme["text"],
        handlelength=0.9,
        handletextpad=0.4,
        columnspacing=1,
    )


def main() -> None:
    """Write the pictures."""
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "streams", "font.family": "sans-serif"}
    )
    for name, theme in THEMES.items():
        figure = plt.figure(figsize=(9.6, 5.2))
        draw(figure, theme)
        figure.savefig(DOCS / "assets" / f"streams-{name}.svg", transparent=True, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
