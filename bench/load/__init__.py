"""Send requests as a scenario says, and report what clients see."""
