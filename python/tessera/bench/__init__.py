"""Timing of operators on the shapes of real models, against the machine's ceiling and against other implementations."""
