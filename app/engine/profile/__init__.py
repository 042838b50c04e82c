"""What a step costs on this machine."""
