"""Run the pipeline in worker processes."""
