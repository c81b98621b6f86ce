"""Who sits at the other end of a conversation."""
