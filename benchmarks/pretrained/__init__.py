"""The models that ship with the package: their data (``prepare``), and their training and evaluation (``build``)."""
