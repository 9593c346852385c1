"""``python -m locos_tl.cli``."""

from . import main

main()
