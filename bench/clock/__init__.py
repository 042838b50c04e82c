"""A clock for `./paceline chaos` that jumps; its folder is put on the path of the processes that it is for."""
