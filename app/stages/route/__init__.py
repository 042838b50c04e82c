"""Choose the drafters of a round and the verifier of a request."""
