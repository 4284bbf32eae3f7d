"""Fast pure decision functions, asked once per request or per tick."""
