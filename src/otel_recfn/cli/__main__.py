"""The command line as ``python -m otel_recfn.cli``."""

import sys

from otel_recfn.cli import main

sys.exit(main())
