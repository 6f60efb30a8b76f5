"""The agent of a node: it carries messages of the workers, and finds workers that hang."""
