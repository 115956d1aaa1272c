"""Write the table of keys in docs/console.md from the actions; with ``--check`` say whether it is up to date."""

import sys
from pathlib import Path
from typing import Final

from prorsa.console.actions import keys_markdown

PAGE: Final = Path(__file__).parent.parent / "docs" / "console.md"
BEGIN: Final = "<!-- keys: made by scripts/console_reference.py from prorsa/console/actions.py -->"
END: Final = "<!-- end of keys -->"


def main() -> int:
    """Write the table between its marks, or compare it."""
    page = PAGE.read_text()
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        print(f"{PAGE}: no room for the keys between `{BEGIN}` and `{END}`", file=sys.stderr)
        return 1
    made = f"{head}{BEGIN}\n\n{keys_markdown()}\n\n{END}{tail}"
    if "--check" in sys.argv[1:]:
        if page == made:
            return 0
        print(f"{PAGE} does not have the console's keys: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
