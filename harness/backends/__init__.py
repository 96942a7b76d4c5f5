"""Attention implementations behind one interface, by registry key."""
