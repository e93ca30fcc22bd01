"""Every operator against `backend="reference"`: the accuracy contract as numbers, and the command `tessera check`."""
