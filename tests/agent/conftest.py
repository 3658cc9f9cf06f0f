"""Servers that speak the providers' protocols."""

from tests.loopback.fixtures import *  # noqa: F403 - fixtures
