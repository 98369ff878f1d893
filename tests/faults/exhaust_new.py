"""Has each `new` of every operator fail; run by test_allocations.py with failing_new.cpp loaded.

Prints how many allocations each call made.
"""

import ctypes
import gc
import itertools
import json
import sys

from calls import problems, rows
from failing import Allocator, exhaust
from threads import threads

if __name__ == "__main__":
    allocator = Allocator(ctypes.CDLL(None))
    gc.collect()
    gc.disable()  # what it frees would be missed
    made = {}
    with threads(2):
        for name, call in itertools.chain(rows(), problems(1)):
            print(name, file=sys.stderr, flush=True)  # the last one, if the process ends
            made[name] = exhaust(call, allocator)
    print(json.dumps(made))
