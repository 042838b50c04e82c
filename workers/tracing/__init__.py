"""Record which worker worked on which requests, and when."""
