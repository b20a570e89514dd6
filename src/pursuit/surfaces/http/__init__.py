"""Plain HTTP beside the MCP endpoint: what programs of the operator, such as a web page, may ask."""
