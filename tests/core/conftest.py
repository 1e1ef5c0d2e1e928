"""Hypothesis here is reproducible and has no deadline: two cores, shared with others."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=100)
settings.register_profile(
    "long", deadline=None, max_examples=5_000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("noshrink", settings.get_profile("ci"), phases=[Phase.generate])
settings.load_profile(os.environ.get("COMPOSER_HYPOTHESIS", "ci"))
