"""`python -m coterie` and `coterie` are the command line. Ctrl-C while libraries are loaded is no traceback either."""

import os
import sys
from contextlib import suppress

from coterie import ctrl_c


def start() -> int:
    """The exit code of the command."""
    ctrl_c.take()
    try:
        os.getcwd()
        from coterie.cli.main import main
    except FileNotFoundError:
        print("coterie: the current folder is gone; go to another one", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # between two imports
        print("coterie: interrupted", file=sys.stderr)
        return 130
    code = main()
    ctrl_c.done()
    return code


if __name__ == "__main__":
    with suppress(FileNotFoundError):  # of a current folder that is gone
        if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.realpath(os.getcwd()):
            del sys.path[
                0
            ]  # `python -m` puts it there; a file named as a library's is not to be run for that
    from coterie.backends.torchrun import launched

    code = start()
    if launched():  # all is said; the threads of torch.distributed may abort a process that tidies up
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
