"""Commands, run as a user runs them."""
