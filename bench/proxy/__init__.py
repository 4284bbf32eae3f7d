"""What a proxy costs: the same streams through trimtab and its peers, interleaved in one run."""
