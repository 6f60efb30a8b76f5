"""`python -m outlast`: the same as the command `outlast`."""

import sys

from outlast.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
