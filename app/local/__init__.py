"""Run an instance on one machine, for `./paceline up`, `down`, `status` and `doctor`."""
