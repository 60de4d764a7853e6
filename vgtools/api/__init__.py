"""The Python interface: `banks` asks, `rows` are the answers, `reading` reads artifacts.

Its names are public by the list in `vgtools/__init__.py` alone.
"""
