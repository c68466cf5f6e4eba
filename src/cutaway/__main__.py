"""`python -m cutaway` is the `cutaway` command."""

import sys

if __name__ == "__main__":
    try:
        from cutaway.cli.main import main

        main()
    except KeyboardInterrupt:  # before main() could hear it
        sys.exit(130)
