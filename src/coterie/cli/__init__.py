"""The command line: one file for each command, or for a few that belong together.

Everything that is printed and every exit code is here. A command imports what it needs when it is called, so that
`coterie --help` takes no time.
"""
