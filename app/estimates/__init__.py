"""What is learnt online: costs, acceptance, calibration."""
