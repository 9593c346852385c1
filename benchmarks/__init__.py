"""Ratios measured side by side in one run; ``python -m benchmarks`` runs everything and writes the docs table."""
