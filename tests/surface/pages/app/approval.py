"""The approval of the samples, under a name of the project's."""

from __future__ import annotations

from samples.approval.workflow import approval as approval
