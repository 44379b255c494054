"""The ways in: deliveries are read, identified, claimed, handled and settled."""
