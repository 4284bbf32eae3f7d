"""A discrete-event simulator that drives the same policies, rollouts and fold as live traffic."""
