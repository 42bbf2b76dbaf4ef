"""How far answers can be trusted: learned before deployment, estimated in the stream."""
