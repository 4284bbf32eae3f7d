"""The asyncio shells that perform what the pure packages decide."""
