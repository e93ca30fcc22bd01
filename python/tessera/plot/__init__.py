"""Pictures of what `tessera bench` and `tessera demo` have saved: the command `tessera plot`. Needs matplotlib."""
