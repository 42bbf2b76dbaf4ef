"""Trust in answers: learned before deployment, estimated in the stream."""
