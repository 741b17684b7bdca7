"""MCP: the tools of other processes. The SDK (`mcp`, an extra) is imported in this package only, and lazily."""
