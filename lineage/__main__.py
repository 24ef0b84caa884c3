"""`python -m lineage`."""

from lineage.cli import main

main()
