"""The rules that every simulated run must keep, and the checkers that watch them."""
