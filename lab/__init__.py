"""Experiments about ways of speculating: the simulator, the testbeds of the papers, live comparisons."""
