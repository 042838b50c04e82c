"""Run the target on a GPU: weights, one packed forward of kernel launches, CUDA graphs, and the
runner around them.
"""
