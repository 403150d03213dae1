"""`python -m rose_cli`: the command `rose`, where its script is not on PATH."""

from rose_cli.entry import main

if __name__ == "__main__":
    main()
