"""Manifests resolved and checked without a cluster."""
