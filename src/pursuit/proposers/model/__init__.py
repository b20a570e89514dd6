"""The proposers `model` and `sampling`: a conversation with a language model, a provider's or the client's."""
