"""Which nodes can share a kernel, and how their axes line up."""
