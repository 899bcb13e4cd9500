"""workers/inference."""
