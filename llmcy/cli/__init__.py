"""The ``llmcy`` command: one file per sub-command."""
