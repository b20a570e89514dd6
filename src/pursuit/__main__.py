"""`python -m pursuit`: the command, where its script is not on the path."""

from pursuit.cli.main import main

if __name__ == "__main__":
    main()
