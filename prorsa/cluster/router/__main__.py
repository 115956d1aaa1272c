"""``python -m prorsa.cluster.router CONFIG.toml``."""

import sys

from prorsa.cluster.router.process import main

sys.exit(main())
