from tests.loopback.fixtures import *  # noqa: F403 - fixtures
