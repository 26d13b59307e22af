"""`python -m coterie` is the command line."""

import sys

from coterie.cli import main

sys.exit(main())
