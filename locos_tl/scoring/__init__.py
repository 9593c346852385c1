"""The equations, the detectors, and the pass over the model that serves them."""
