"""Entity linking for biomedical text, on a laptop, one GPU or a Ray cluster."""

__version__ = "0.1.0"
