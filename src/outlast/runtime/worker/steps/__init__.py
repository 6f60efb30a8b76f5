"""A step as a transaction: from the batch over the vote to the commit, and back after a failure."""
