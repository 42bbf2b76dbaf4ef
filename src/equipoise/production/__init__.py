"""An adapter in production: a guard, a monitor and a server."""
