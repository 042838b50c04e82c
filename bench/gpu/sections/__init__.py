"""The parts of the GPU's run."""
