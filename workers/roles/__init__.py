"""What each kind of worker process does; one file a role, each with `serve`."""
