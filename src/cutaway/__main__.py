"""`python -m cutaway` is the `cutaway` command."""

from cutaway.cli.main import main

if __name__ == "__main__":
    main()
