"""What goes into the next step of the target."""
