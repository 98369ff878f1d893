"""Random and hostile calls of every operator, against the oracles: `python tests/fuzz --help`.

A problem is one call, in plain values, and a function of 256 random bytes: the byte of each choice
says which of its options is taken, and 0 stands for the simplest. So a seed and a number give the
same problem anywhere, and Hypothesis makes a problem that fails simpler by making its bytes
smaller. In reports and in `regressions.jsonl`, a problem is a line of JSON.

- `problems.py`: bytes, tensors and calls.
- `operators/`: for each operator, how a problem is made of bytes, and what the call should give.
- `modes.py`: what is checked of a call; `wrong.py`: bad calls; `guard.cpp`, `guard.py`: memory.
- `campaign.py`, `worker.py`: many problems, in processes that may crash; `shrink.py`: simpler ones.
"""
