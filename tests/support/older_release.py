"""`pursuit` as a release would be that does not know one type of event yet: `older_release.py TYPE WORDS…`."""

import sys

from pursuit.cli.main import main
from pursuit.core.events import KNOWN

if __name__ == "__main__":
    KNOWN.remove(sys.argv[1])
    main(sys.argv[2:])
