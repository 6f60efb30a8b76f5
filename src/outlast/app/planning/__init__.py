"""`outlast plan` and `outlast calibrate`: inputs, and a plan as text, page and charts."""
