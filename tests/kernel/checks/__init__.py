"""What is checked, by subject."""
