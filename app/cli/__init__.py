"""What a command of `./paceline` does."""
