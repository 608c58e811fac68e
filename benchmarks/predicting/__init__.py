"""Parts of `predict_here.py`."""
