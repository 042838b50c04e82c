"""Run a pass of a model on a CPU: the compiled forward, the model's own modules, and the runner
around them.
"""
