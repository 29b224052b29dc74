"""``python -m glassformer`` is the program ``glassformer``."""

from glassformer.cli.main import app

app(prog_name="glassformer")
