"""One machine's processes: what `./paceline up`, `down`, `status` and `doctor` do."""
