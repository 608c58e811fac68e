"""Tests of real clusters start schedulers and need root; `make test-clusters` runs them."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("SCALEWISE_TEST_CLUSTERS") else ["test_*.py"]
