"""What a verifier runs."""
