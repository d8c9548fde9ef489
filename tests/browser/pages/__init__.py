"""The pages around the timeline in a real browser."""
