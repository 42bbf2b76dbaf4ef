"""The parts of the HTTP door: reading requests, guarding them, answering them."""
