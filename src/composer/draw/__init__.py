"""Drawings of plans: text for a terminal, Mermaid for a page, SVG for everything else. Pure functions of the plan.

Each takes the states of a run's nodes too, by node name, so that a drawing of the workflow is one of the run as well.
"""

from composer.draw.mermaid import mermaid
from composer.draw.svg import svg
from composer.draw.text import text

__all__ = ["mermaid", "svg", "text"]
