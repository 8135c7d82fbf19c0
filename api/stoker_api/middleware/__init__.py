"""Plain ASGI middleware, outermost first: observe (trace id, metrics, last resort), guard (Host, Origin), limits."""
