"""JSON-RPC's error codes, as plain numbers.

Owns: the codes that parts without an MCP server also speak of. The SDK has them, too, but takes a fifth of a second to
load: a command that talks to no server does without it.
"""

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
