"""`python -m everyformer` is the command `everyformer`."""

from everyformer.cli.start import main

if __name__ == "__main__":
    main()
