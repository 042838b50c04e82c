"""Compare Paceline with other engines, each in a process and an environment of its own."""
