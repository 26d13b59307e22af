"""`python -m coterie` and `coterie` are the command line. Ctrl-C while libraries are loaded is no traceback either."""

import os
import sys
from contextlib import suppress

from coterie import ctrl_c


def start() -> int:
    """The exit code of the command."""
    try:
        ctrl_c.take()
        try:
            os.getcwd()
        except FileNotFoundError:
            print("coterie: the current folder is gone; go to another one", file=sys.stderr)
            return 2
        from coterie.cli.main import main

        code = main()
        ctrl_c.done()
        return code
    except KeyboardInterrupt:  # outside of what `main` watches over
        print("coterie: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    with suppress(FileNotFoundError):  # of a current folder that is gone
        if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.realpath(os.getcwd()):
            del sys.path[0]  # `python -m` puts it there; a file named like a library is not to be run
    from coterie.backends.torchrun import launched

    code = start()
    if launched():  # all is said; the threads of torch.distributed may abort a process that tidies up
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
