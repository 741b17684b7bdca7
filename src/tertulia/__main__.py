"""`python -m tertulia` is `tertulia`."""

import sys

from .cli.main import main

sys.exit(main())
