"""What the state machines share: outputs, the link between nodes, and a worker's part."""
