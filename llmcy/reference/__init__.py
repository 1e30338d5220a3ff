"""The published runs, as data and as a self test."""
