"""Drills run on the clusters of the integration tests."""

from tests.integration.conftest import fake_cluster

__all__ = ["fake_cluster"]
