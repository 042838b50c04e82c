"""Learn online: step and draft costs, acceptance, calibration, priors."""
