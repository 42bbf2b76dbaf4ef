"""The guard: watches an adapter over a stream, and holds, rolls back or resets it, with a reason in words."""
