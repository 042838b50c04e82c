"""What a drafter node runs, and what runs ahead."""
