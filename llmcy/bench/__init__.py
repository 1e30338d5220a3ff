"""Measuring how fast the kernels and the training step are, against what the processor can do."""
