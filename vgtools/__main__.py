"""Let `python -m vgtools` and `accelerate launch -m vgtools` be `vg`."""

from vgtools.cli import main

if __name__ == "__main__":
    main()
