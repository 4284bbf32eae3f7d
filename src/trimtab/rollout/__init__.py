"""Arms, slices, gates, ramps and triggers: how a lever is proven and taken back."""
