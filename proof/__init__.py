"""What takes too long for `make test`: the suite under forced choices, and the wheel in empty environments."""
