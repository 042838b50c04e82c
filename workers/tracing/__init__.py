"""Record which worker worked on what, and when."""
