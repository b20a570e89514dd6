"""The proposer `search`: arguments of one tool, searched towards metric criteria without a model."""
