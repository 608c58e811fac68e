"""A strategy outside of the package: two files and the two registry entries below.

Ranks import this package when they unpickle a task that contains the strategy, so the entries exist there too.
"""

from scalewise.engines.registry import ENGINES
from scalewise.strategies.registry import STRATEGIES
from tests.toy_strategy.engine import build
from tests.toy_strategy.strategy import Flat

STRATEGIES["flat"] = Flat
ENGINES["flat"] = build
