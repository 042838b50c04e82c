"""Hold the module that `./paceline chaos` has Python run first."""
