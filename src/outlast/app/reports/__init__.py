"""What is said of one run or of several: status, report, tables, metrics, exports."""
