"""Modules of `predict_here.py`."""
