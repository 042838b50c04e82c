"""Which cores or multiprocessors each side gets."""
