"""The arithmetic that turns readings and events into signals. Pure: no I/O and no clock; time is an argument."""
