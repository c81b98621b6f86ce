"""tau-bench: customer service in a shop and at an airline, in the benchmark's own package."""
