"""Consumer groups of the protocol with a coordinator that assigns (KIP-848). Pure, apart from `service`."""
