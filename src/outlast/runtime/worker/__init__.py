"""The code that runs inside a training process, one for each rank."""
