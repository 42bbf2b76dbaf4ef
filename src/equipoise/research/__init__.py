"""Data sets, models, experiments and their reports."""

from equipoise.research import models as models
