"""The gates: rules of this repository that a machine checks. `python -m gates` runs them all.

Each gate is a function of the checkout's path that returns findings; `tests/gates` shows each one failing.
"""
