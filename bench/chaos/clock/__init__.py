"""What `./paceline chaos` has Python run first."""
