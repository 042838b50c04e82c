"""Run the commands of `./paceline`."""
