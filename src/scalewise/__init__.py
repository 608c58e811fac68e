"""Will more GPUs make your training faster? Train, measure and advise, without importing torch until it is needed."""

__version__ = "0.1.0"
