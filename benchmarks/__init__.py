"""Figures against named peers, measured in the same run; ``python -m benchmarks`` runs them all."""
