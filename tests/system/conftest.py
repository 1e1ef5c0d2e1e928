"""Processes and a client on this module's database."""

from tests.system.fixtures import client, site

__all__ = ["client", "site"]
