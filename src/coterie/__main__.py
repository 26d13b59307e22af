"""`python -m coterie` is the command line."""

import os
import sys

if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.realpath(os.getcwd()):
    del sys.path[0]  # `python -m` puts it there; a file named as a library's is not to be run for that

from coterie.backends.torchrun import launched
from coterie.cli.main import main

code = main()
if launched():  # all is written and said; the threads of torch.distributed may abort a process that tidies up
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
