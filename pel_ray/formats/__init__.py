"""Readers of the files users have: each turns lines into entities or mentions, and knows nothing of folders."""
