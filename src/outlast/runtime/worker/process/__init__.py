"""What a worker's process knows of itself: its device, its phase, its variables, its end."""
