"""The data of a script: samplers, loaders, and batches that it draws itself."""
