"""A causal language model in TransformerLens hooks."""
