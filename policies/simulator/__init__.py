"""Simulated bundles."""
